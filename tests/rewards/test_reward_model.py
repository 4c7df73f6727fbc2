"""A learned reward and the KL that is paid for in reward."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import etude
from etude.core.episodes import Episode
from etude.core.errors import ConfigError
from etude.core.registry import get_method
from etude.core.rows import last_action, to_batch
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.experience.data import Pairs
from etude.policies.language import LanguagePolicy
from etude.rewards.kl import KLPenalty
from etude.rewards.model import RewardModel
from etude.tasks.language.preferences import preferences


def test_kl_penalty_by_hand(make_batch) -> None:
    batch = make_batch([[0, 1, 1]], behaviour_logp=[[0, -1.0, -2.0]], reference_logp=[[0, -3.0, -1.5]])
    assert KLPenalty(coefficient=0.1).shape(batch).tolist() == [[0, pytest.approx(-0.2), pytest.approx(0.05)]]


def test_kl_penalty_expects_minus_the_kl(make_batch) -> None:
    g = torch.Generator().manual_seed(0)
    logp, ref = (torch.randn(5, generator=g, dtype=torch.float64).log_softmax(0) for _ in range(2))
    batch = make_batch([[1]] * 5, behaviour_logp=logp[:, None], reference_logp=ref[:, None])
    paid = (logp.exp() * KLPenalty(coefficient=0.3).shape(batch)[:, 0]).sum()
    torch.testing.assert_close(paid, -0.3 * (logp.exp() * (logp - ref)).sum(), atol=1e-12, rtol=0)


def test_a_method_without_its_reward_model_says_what_to_set() -> None:
    with pytest.raises(ConfigError, match=r"--set rewards\.reward-model\.model=RUN"):
        get_method("ppo-rlhf").check()


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> tuple[LanguagePolicy, Path]:
    """An untrained reward model whose value head is not zero, and its folder."""
    policy = LanguagePolicy.load("tiny", device="cpu")
    torch.nn.init.normal_(policy.add_value_head().weight, generator=torch.Generator().manual_seed(0))
    folder = tmp_path_factory.mktemp("reward-model")
    policy.save(folder)
    return policy, folder


def episodes(policy: LanguagePolicy) -> list[Episode]:
    problems = [preferences.problems("train")[i] for i in range(4)]
    return Pairs().collect(problems, Context(preferences, policy, Stream(0)))


@pytest.mark.slow
def test_the_score_is_the_value_at_the_last_action_token(scorer) -> None:
    policy, folder = scorer
    found = (
        RewardModel(model=str(folder), weight=2.0).bind().score(episodes(policy), Context(preferences, policy, None))
    )
    batch = to_batch(episodes(policy), 0, 1.0, policy.device)
    values = policy.evaluate(batch, {"values"}).values.detach()
    expected = 2 * values.gather(1, last_action(batch)[:, None])[:, 0]
    assert found == pytest.approx(expected.tolist(), abs=1e-4)
    assert len(set(found)) == 8


@pytest.mark.slow
def test_another_tokenizer_reads_the_text_again(scorer) -> None:
    """The policy's own ids are shuffled: scores come from the text, and the policy's tokens are left alone."""
    policy, folder = scorer
    other = LanguagePolicy.load("tiny", device="cpu")
    other.tokenizer.add_tokens(["<other>"])
    played = episodes(policy)
    tokens = [[1 + t for t in s.tokens] for e in played for s in e.segments]
    for segment, ids in zip((s for e in played for s in e.segments), tokens):
        segment.tokens = ids
    part = RewardModel(model=str(folder)).bind()
    found = part.score(played, Context(preferences, other, None))
    assert found == pytest.approx(part.score(episodes(policy), Context(preferences, policy, None)), abs=1e-6)
    assert [s.tokens for e in played for s in e.segments] == tokens


def test_a_folder_without_a_value_head_is_refused(tmp_path: Path) -> None:
    policy = LanguagePolicy.load("tiny", device="cpu")
    policy.save(tmp_path)
    with pytest.raises(ConfigError, match=r"no value_head\.safetensors"):
        RewardModel(model=str(tmp_path)).bind().score(episodes(policy), Context(preferences, policy, None))


@pytest.mark.slow
def test_a_run_is_its_newest_checkpoint(tmp_path: Path) -> None:
    small = {"steps": 2, "checkpoint_every": 1, "evaluate": 0, "quiet": True, "set": {"problems": 2}}
    run = etude.train("reward-model", "preferences", out=str(tmp_path / "judge"), **small)
    part = RewardModel(model=str(run.folder))
    assert part.model == str(run.checkpoint / "model") and run.checkpoint.name == "step-2"
    assert part.replace(weight=0.5).model == part.model
    (run.checkpoint / "COMPLETE").unlink(missing_ok=True)
    (run.checkpoint / "model/value_head.safetensors").write_bytes(b"")
    assert RewardModel(model=str(run.folder)).model.endswith("step-1/model")
