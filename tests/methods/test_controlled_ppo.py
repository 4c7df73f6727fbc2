"""PPO with other rewards, critics, references and rows: what each method is without its change, and with it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from etude.core.errors import ConfigError
from etude.core.registry import get_method
from etude.evaluation.small_batch import small_tokens
from etude.learners.value_model import ValueModel
from etude.policies.language import LanguagePolicy
from language_toys import Toy, make_loop, random_policy

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> tuple[LanguagePolicy, Path]:
    """A toy model whose value head is not zero, and its folder."""
    policy: Any = random_policy(seed=3)
    torch.nn.init.normal_(policy.add_value_head().weight, generator=torch.Generator().manual_seed(0))
    folder = tmp_path_factory.mktemp("scorer")
    policy.save(folder)
    return policy, folder


# PPO-max


def test_ppo_max_without_its_measures_is_ppo_rlhf() -> None:
    method, parent = get_method("ppo-max"), get_method("ppo-rlhf")
    judged, _, _, distance = method.rewards
    off = method.replace(
        stages=(), rewards=(judged.replace(weight=0.2), distance.replace(coefficient=0.02)), critic=parent.critic,
        optimizer=method.optimizer.replace(warmup=0.0), problems=32, epochs=2, minibatches=2,
    )  # fmt: skip
    assert off.diff(parent) == {}


def test_a_clip_of_values_changes_no_loss_within_its_band() -> None:
    """Beyond it a value is charged for what the clip left it short of."""
    batch, _ = small_tokens(frozenset({"values"}))  # type: ignore[arg-type]
    moved = 0.3 * torch.randn(batch.values.shape, generator=torch.Generator().manual_seed(1))
    clipped, plain = ValueModel(clip=0.2), ValueModel()
    near = batch.values + moved.clamp(-0.2, 0.2)
    torch.testing.assert_close(clipped.loss(batch, near), plain.loss(batch, near), atol=1e-6, rtol=0)
    far = batch.values + moved
    held = plain.loss(batch, near)
    torch.testing.assert_close(clipped.loss(batch, far), torch.maximum(held, plain.loss(batch, far)), atol=1e-6, rtol=0)
    assert bool((clipped.loss(batch, far) > plain.loss(batch, far) + 1e-4).any())


@pytest.mark.slow
def test_a_critic_can_begin_as_a_reward_model(scorer: tuple[LanguagePolicy, Path]) -> None:
    """With its value head; another model's tokens are refused."""
    judge, folder = scorer
    policy: Any = random_policy(seed=0)
    rows = make_loop(get_method("ppo").replace(problems=2), Toy(), policy)
    batch = rows.gatherer.gather(rows.method, 2, rows.context(rows.method, rows.stream))
    network = ValueModel(model=str(folder)).build(policy)
    said = judge.evaluate(batch, {"values"}).values
    torch.testing.assert_close(network.values(batch), said)
    assert not torch.allclose(said[batch.action_mask], torch.zeros(()))
    policy.tokenizer = copy.deepcopy(policy.tokenizer)
    policy.tokenizer.add_tokens(["<other>"])
    with pytest.raises(ConfigError, match="other tokens than the policy"):
        ValueModel(model=str(folder)).build(policy)
