"""G2RL: features without a backward pass, novelty within a group, and the rewards that it shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from etude.advantages.group import GroupAdvantage, GroupStd
from etude.core.batches import Head, TokenBatch
from etude.core.registry import get_method
from etude.evaluation.exact import expected_gradient
from etude.loops.bandit import Bandit
from etude.methods.rlvr.g2rl import GradientNovelty, completion_features, novelty, stretched, token_features
from etude.policies.tabular import SoftmaxTree
from language_toys import make_loop

pytestmark = pytest.mark.usefixtures("one_thread")
F64, V, H = torch.float64, 7, 5


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


@pytest.fixture
def batch(make_batch: Callable[..., TokenBatch]) -> TokenBatch:
    """Two groups, of 4 and 3 completions of up to 4 tokens, some right."""
    lengths = torch.tensor([4, 2, 3, 1, 4, 3, 2])
    mask = (torch.arange(5) > 0) & (torch.arange(5) <= lengths[:, None])
    made = make_batch(
        mask, tokens=torch.randint(V, mask.shape, generator=torch.Generator().manual_seed(1)),
        group=[5, 5, 5, 5, 2, 2, 2], scores=[1.0, 0, 1, 0, 0, 1, 0],
    )  # fmt: skip
    made.hidden = random(7, 5, H, seed=2) * mask[..., None]
    return made.replace(head=Head(random(V, H, seed=3), random(V, seed=4), 0.7))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("cap", [None, 2.0])
def test_features_are_the_gradient_of_the_log_probability(
    temperature: float, cap: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("etude.core.batches.LOGITS", 2 * V)
    weight, bias, tokens = random(V, H), random(V, seed=1), torch.tensor([0, 3, 6, 3, 1])
    hidden = random(5, H, seed=2).requires_grad_(True)
    z = hidden @ weight.T + bias
    z = z if cap is None else cap * (z / cap).tanh()
    logp = (z / temperature).log_softmax(1).gather(1, tokens[:, None])
    (wanted,) = torch.autograd.grad(logp.sum(), hidden)
    found = token_features(hidden.detach(), tokens, Head(weight, bias, temperature, cap))
    torch.testing.assert_close(found / temperature, wanted, atol=1e-12, rtol=0)


def test_a_feature_is_the_drawn_row_of_the_head_minus_the_mean_row() -> None:
    head, hidden = Head(random(V, H), None, 0.5), random(1, H, seed=2)
    p = (head.weight @ hidden[0] / 0.5).softmax(0)
    found = token_features(hidden, torch.tensor([2]), head)[0]
    torch.testing.assert_close(found, head.weight[2] - p @ head.weight, atol=1e-12, rtol=0)


def test_a_completions_feature_is_the_mean_over_its_own_tokens(batch: TokenBatch) -> None:
    assert batch.head is not None
    found = completion_features(batch.hidden, batch.tokens, batch.action_mask, batch.head)
    for row in range(7):
        on = batch.action_mask[row]
        phi = token_features(batch.hidden[row][on], batch.tokens[row][on], batch.head)
        torch.testing.assert_close(found[row], phi.mean(0), atol=1e-12, rtol=0)


def novelty_by_hand(features: Tensor, rewards: Tensor) -> Tensor:
    """Of one group, entry by entry."""
    unit = [f / (f.norm() + 1e-8) for f in features]
    found = []
    for i in range(len(unit)):
        others = [k for k in range(len(unit)) if k != i]
        total = sum(float(rewards[k].exp()) for k in others) + 1e-8
        found.append(max(1 - sum(float(rewards[j].exp()) / total * float(unit[i] @ unit[j]) ** 2 for j in others), 0))
    return torch.tensor(found, dtype=F64)


def test_novelty_by_hand_in_each_group() -> None:
    features, rewards, group = random(7, H), random(7, seed=1).sign(), torch.tensor([5, 2, 5, 5, 2, 2, 5])
    found = novelty(features, rewards, group)
    for g in (5, 2):
        torch.testing.assert_close(
            found[group == g], novelty_by_hand(features[group == g], rewards[group == g]), atol=1e-12, rtol=0
        )
    assert bool(((found >= 0) & (found <= 1)).all())


def test_novelty_ignores_length_and_sign_of_features() -> None:
    features, rewards, group = random(6, H), random(6, seed=1).sign(), torch.tensor([0, 0, 0, 0, 1, 1])
    factors = torch.tensor([3.0, -1.0, 0.2, -7.0, 1.0, -100.0], dtype=F64)
    torch.testing.assert_close(
        novelty(features * factors[:, None], rewards, group, 0.0), novelty(features, rewards, group, 0.0),
        atol=1e-12, rtol=0,
    )  # fmt: skip


def test_parallel_features_are_not_novel_and_orthogonal_ones_are() -> None:
    rewards, group = torch.tensor([1.0, -1, -1, 1], dtype=F64), torch.zeros(4, dtype=torch.long)
    parallel = random(1, H) * torch.tensor([[1.0], [2.0], [-3.0], [0.5]], dtype=F64)
    torch.testing.assert_close(novelty(parallel, rewards, group), torch.zeros(4, dtype=F64), atol=1e-7, rtol=0)
    assert novelty(torch.eye(4, H, dtype=F64), rewards, group).tolist() == [1.0] * 4
    assert novelty(random(1, H), rewards[:1], group[:1]).tolist() == [1.0], "alone in its group"


def test_stretching_to_the_unit_interval() -> None:
    """A difference of 5e-6 is rounding of float32, not novelty."""
    values = torch.tensor([0.2, 0.5, 0.8, 0.4, 0.4 + 5e-6, 0.9], dtype=F64)
    found = stretched(values, torch.tensor([1, 1, 1, 0, 0, 7]))
    torch.testing.assert_close(found, torch.tensor([0, 0.5, 1, 0, 0, 0], dtype=F64), atol=1e-12, rtol=0)


def with_nu(monkeypatch: pytest.MonkeyPatch, nu: list[float]) -> None:
    monkeypatch.setattr("etude.methods.rlvr.g2rl.novelty", lambda *a: torch.tensor(nu, dtype=F64))


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, [2, -1.5, 1, -2, -1, 1, -1]),
        ({"wrong": "spared"}, [2, -0.5, 1, 0, -1, 1, -1]),
        ({"strength": 6.0}, [3, -3, 1, -3, -1, 1, -1]),
        ({"strength": 6.0, "limit": 5.0}, [5, -4, 1, -5, -1, 1, -1]),
        ({"strength": 0.0}, [1, -1, 1, -1, -1, 1, -1]),
    ],
)
def test_shaped_rewards_by_hand(
    batch: TokenBatch, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], wanted: list[float]
) -> None:
    with_nu(monkeypatch, [0.9, 0.5, 0.1, 0.9, 0.4, 0.4, 0.4])  # stretched: 1, 0.5, 0, 1 and 0, 0, 0
    found = GradientNovelty(**fields).rescore(batch)
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=F64), atol=1e-12, rtol=0)


@pytest.mark.parametrize("strength", [0.5, 1.0, 40.0])
def test_shaped_rewards_never_leave_the_limits(batch: TokenBatch, strength: float) -> None:
    found = GradientNovelty(strength=strength).rescore(batch)
    assert bool((found.abs() <= 3).all())
    assert torch.equal(found > 0, batch.scores > 0), "right stays right"
    assert strength < 40 or float(found.abs().max()) == 3


def test_without_strength_the_advantages_are_those_of_grpo(batch: TokenBatch) -> None:
    credit, signed = GroupAdvantage(), 2 * batch.scores - 1
    shaped = GradientNovelty(strength=0.0).rescore(batch)
    assert torch.equal(credit.of_scores(batch, shaped), credit.of_scores(batch, signed))
    plain = credit.replace(
        scale=GroupStd(epsilon=0.0)
    )  # of scores 0 and 1 the deviation is half as large, next to the same epsilon
    torch.testing.assert_close(
        plain.of_scores(batch, shaped), plain.of_scores(batch, batch.scores), atol=1e-12, rtol=0
    )  # fmt: skip


@pytest.mark.slow
def test_without_strength_it_learns_what_grpo_learns() -> None:
    tree = SoftmaxTree(2, 3, 1, spread=1.0)
    bandit = Bandit(tree, torch.tensor([[1.0, 0.0, 1.0]] * 2, dtype=F64))
    exact = GroupAdvantage(scale=GroupStd(epsilon=0.0))
    g2rl, grpo = (get_method(m).replace(advantages=exact) for m in ("g2rl", "grpo"))
    plain = g2rl.replace(rewards=(*grpo.rewards, GradientNovelty(strength=0.0)))
    found = [expected_gradient(m, bandit, 3) for m in (plain, grpo, g2rl)]
    torch.testing.assert_close(found[0], found[1], atol=1e-12, rtol=0)
    assert not torch.allclose(found[2], found[1], atol=1e-3)


def test_equal_completions_get_equal_rewards_in_a_run() -> None:
    """Rounding differs between rows of a batch; stretching must not blow it up."""
    method = get_method("g2rl").replace(problems=3)
    loop = make_loop(method)
    method = method.replace(experience=method.experience.replace(temperature=0.01))
    loop.stages = [(1.0, method.bind())]
    batch = loop._assess(loop.method, 3, 0, loop.stream)["policy"]
    groups = [set(batch.scores[batch.group == g].tolist()) for g in batch.group.unique()]
    texts = [{e.completion for e in batch.episodes if e.group == int(g)} for g in batch.group.unique()]
    assert any(len(t) == 1 for t in texts)
    assert all(len(s) == 1 for s, t in zip(groups, texts) if len(t) == 1)
