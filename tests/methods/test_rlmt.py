"""RLMT: what of a completion the reward model is shown, and one advantage for thought and answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from etude.advantages.group import GroupAdvantage, LeaveOneOut
from etude.core.episodes import Episode, Problem, Segment
from etude.core.errors import ConfigError
from etude.core.registry import get_method
from etude.evaluation.exact import expected_gradient, gradient
from etude.loops.bandit import Bandit
from etude.loops.language import LanguageLoop
from etude.methods.preference.rlmt import AnswerScore
from etude.policies.language import LanguagePolicy
from etude.policies.tabular import SoftmaxTree
from etude.rewards.judged import AfterThinking
from etude.rewards.model import RewardModel
from etude.rewards.outcome import TaskReward
from etude.tasks import resolve_task
from language_toys import random_policy

ASKED = Problem("p/1", "52>")


@pytest.fixture(scope="module")
def scorer() -> LanguagePolicy:
    policy = random_policy(seed=3)
    torch.nn.init.normal_(policy.add_value_head().weight, generator=torch.Generator().manual_seed(0))
    return policy


@pytest.fixture(scope="module")
def run() -> Any:
    return SimpleNamespace(policy=random_policy(seed=0), task=None)


def said(text: str, run: Any, ended: bool = True) -> Episode:
    policy = run.policy
    tokens = policy.encode(text) + [policy.tokenizer.eos_token_id] * ended
    asked = Segment("user", "52>", policy.encode("52>"), [0] * 3, [0.0] * 3)
    return Episode(ASKED, [asked, Segment("assistant", text, tokens, [1] * len(tokens), [-1.0] * len(tokens))])


def scores(texts: list[str], run: Any, scorer: Any, part: RewardModel, ended: bool = True) -> list[float]:
    bound: Any = part.bind()
    bound.made["scorer"] = scorer
    found: list[float] = bound.score([said(text, run, ended) for text in texts], run)
    return found


@pytest.mark.slow
def test_the_thought_has_no_say_and_the_answer_has(run: Any, scorer: Any) -> None:
    thoughts = ["", "so", "a longer thought, about 52", "one</think>and another"]
    found = scores([f"{z}</think>25" for z in thoughts], run, scorer, AnswerScore())
    assert len(set(found)) == 1
    assert found == scores(["25"] * 4, run, scorer, RewardModel(), True)
    other = scores(["so</think>26"], run, scorer, AnswerScore())
    assert abs(other[0] - found[0]) > 1e-3


@pytest.mark.slow
def test_without_a_thought_it_is_the_reward_model(run: Any, scorer: Any) -> None:
    """To the bit, in the tokens that were sampled, whether they came to an end or were cut."""
    for ended in (True, False):
        plain = scores(["25", "7", "52 and"], run, scorer, RewardModel(weight=0.5), ended)
        assert scores(["25", "7", "52 and"], run, scorer, AnswerScore(weight=0.5), ended) == plain
        thought = scores(["so</think>25"], run, scorer, AnswerScore(weight=0.5), ended)
        assert thought == pytest.approx(plain[:1], rel=1e-5)
    assert plain != scores(["25", "7", "52 and"], run, scorer, RewardModel(weight=0.5), True)


@pytest.mark.slow
def test_a_text_without_delimiter_is_scored_whole_unless_strict(run: Any, scorer: Any) -> None:
    loose, strict = AnswerScore(), AnswerScore(sees=AfterThinking(strict=True))
    (empty,) = scores([""], run, scorer, RewardModel())
    assert scores(["25", "so</think>", "so</think>25"], run, scorer, strict) == pytest.approx(
        [empty, empty, *scores(["25"], run, scorer, RewardModel())]
    )
    assert scores(["25"], run, scorer, loose) == scores(["25"], run, scorer, RewardModel())
    assert scores(["so</think>"], run, scorer, loose, False) == pytest.approx([empty])  # cut: an end is put there


@pytest.mark.slow
def test_several_turns_and_a_folder_without_a_model_are_refused(tmp_path: Path, run: Any) -> None:
    hunt, part = resolve_task("number-hunt"), AnswerScore(model=str(tmp_path))
    assert hunt.max_turns > 1 and "has up to" in (part.lacks(hunt) or "")
    assert part.lacks(resolve_task("sorting")) is None
    with pytest.raises(ConfigError, match=r"has no value_head\.safetensors"):
        part.bind().score([said("25", run)], run)


@pytest.mark.slow
def test_one_advantage_for_thought_and_answer_is_the_gradient() -> None:
    """Three thoughts and three answers; what is paid is the answer's. Enumerated, and not so without the thought's."""
    policy = SoftmaxTree(1, 3, 2, spread=1.0, seed=5)
    by_answer = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)
    given = Bandit(policy, by_answer[policy.tokens[:, 1]][None])
    plain: Any = get_method("rlmt")
    unscaled = plain.replace(
        rewards=(TaskReward(),), advantages=GroupAdvantage(centre=LeaveOneOut(), scale=None), regularizers=()
    )
    found = expected_gradient(unscaled, given, 2)
    wanted = -gradient((policy.probs() * given.rewards).sum(), policy) / 2  # a mean over two tokens
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-13)
    first = policy.nodes[0, 0]
    assert found[0, first].abs().max() > 0.01  # what the thought's own token learns


@pytest.mark.slow
def test_an_empty_thought_leaves_grpo_ppo_and_dpo_as_they_are(scorer: Any) -> None:
    """Two steps of a policy that never thinks: the metrics with either reward are those with the other."""
    for name in ("rlmt", "rlmt-dpo"):  # what ppo learns from is no other batch
        assert steps(name, AnswerScore(), scorer) == steps(name, RewardModel(), scorer)


def steps(name: str, part: RewardModel, scorer: Any) -> list[dict[str, float]]:
    method: Any = get_method(name)
    few = method.replace(rewards=(part,), problems=2, experience=method.experience.replace(size=4, max_tokens=3))
    loop = LanguageLoop(few, resolve_task("sorting"), random_policy(seed=1), seed=0, steps=2)
    for held in loop.method.rewards:
        held.made["scorer"] = scorer  # type: ignore[union-attr]
    found = [loop.step().metrics for _ in range(2)]
    left_out = ("seconds", "tokens_per_second", "reward/")
    return [{k: v for k, v in line.items() if not k.startswith(left_out)} for line in found]


def test_the_arms_of_the_claim_are_told_apart() -> None:
    thinks, plain = resolve_task("sorting"), replace(resolve_task("sorting"), thinks=False)
    for one, other in zip(thinks.problems("train")[:5], plain.problems("train")[:5]):
        thought, _, answer = str(one.info["demonstration"]).rpartition(")")
        assert thought and answer == other.info["demonstration"]
        assert [one.info[k] for k in ("chosen", "rejected")] == [other.info[k] for k in ("chosen", "rejected")]
