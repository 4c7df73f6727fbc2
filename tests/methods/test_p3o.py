"""P3O: whose gradient it has, on the policy and off it, with its clips and without; constants of prompts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.method import Method
from etude.core.registry import get_method
from etude.evaluation.exact import expected_gradient, gradient
from etude.loops.bandit import Bandit
from etude.methods.preference.p3o import JointPairwiseSurrogate, PairwiseSurrogate
from etude.policies.tabular import SoftmaxTree

REWARDS = torch.tensor([[0.9, -0.3, 0.4, 1.7]], dtype=torch.float64)
OPEN = 1e9
"""A clip that never binds."""
VARIANTS = [PairwiseSurrogate, JointPairwiseSurrogate]


def tree(seed: int, length: int = 1) -> SoftmaxTree:
    return SoftmaxTree(1, 4 if length == 1 else 2, length, spread=1.0, seed=seed)


def bandit(length: int = 1) -> Bandit:
    policy = tree(0, length)
    return Bandit(policy, REWARDS[:, : len(policy.tokens)])


def p3o(objective: Any) -> Method:
    """Without what is paid besides the table."""
    method: Any = get_method("p3o")
    return method.replace(rewards=method.rewards[:1], objective=objective)


def exact(given: Bandit) -> Tensor:
    """The gradient of E[r] by the logits."""
    return gradient((given.policy.probs() * given.rewards).sum(), given.policy)


def away(found: Tensor, given: Bandit) -> float:
    """How far an expected gradient of the loss is from -grad E[r], as a share of its norm."""
    return float((found + exact(given)).norm() / exact(given).norm())


@pytest.mark.slow
@pytest.mark.parametrize("objective", VARIANTS)
@pytest.mark.parametrize("length", [1, 2])
def test_on_fresh_samples_both_variants_ascend_the_mean_reward(objective: Any, length: int) -> None:
    """With the clip that they come with; and with two completions that is RLOO's gradient."""
    given = bandit(length)
    found = expected_gradient(p3o(objective()), given, 2)
    assert away(found, given) < 1e-10
    rloo = expected_gradient(get_method("rloo"), given, 2) * length  # its sums over tokens are divided by the limit
    torch.testing.assert_close(found, rloo, rtol=1e-10, atol=1e-13)
    three = expected_gradient(p3o(objective()), given, 3)
    torch.testing.assert_close(three, found, rtol=1e-10, atol=1e-13)  # of three, as many pairs of each


@pytest.mark.slow
@pytest.mark.parametrize("objective", VARIANTS)
@pytest.mark.parametrize("mu", [1, 2])
def test_without_a_clip_there_is_no_bias_off_the_policy_and_with_one_there_is(objective: Any, mu: int) -> None:
    """Enumerated for two behaviour policies far from pi; what a clip costs is measured, and more for a tighter one."""
    given = bandit()
    open_, loose, tight = (
        away(expected_gradient(p3o(objective(epsilon=e)), given, 2, behaviour=tree(mu)), given)
        for e in (OPEN, 0.8, 0.2)
    )  # fmt: skip
    assert open_ < 1e-10
    assert tight > 0.1 and tight >= loose


@pytest.mark.slow
def test_what_the_ratios_inside_the_weight_are_for() -> None:
    """Without them V2 is biased however open its clip; V1 is not (r' is a baseline), but another estimate."""

    class Separate(PairwiseSurrogate):
        def _weighing(self, log_ratio: Tensor) -> Tensor:
            return torch.ones_like(log_ratio)

    class Together(JointPairwiseSurrogate):
        def _weighing(self, log_ratio: Tensor) -> Tensor:
            return torch.ones_like(log_ratio)

    given = bandit()
    found = [expected_gradient(p3o(part(epsilon=OPEN)), given, 2, behaviour=tree(1)) for part in (Separate, Together)]
    assert away(found[0], given) < 1e-10 and away(found[1], given) > 0.05
    batch, policy = rows()
    assert Separate()(batch, policy).tolist() != PairwiseSurrogate()(batch, policy).tolist()


def rows(shift: float = 0.0) -> tuple[TokenBatch, TokenLogProbs]:
    """Two answers to each of two prompts, whose rewards are eighths; what is paid for the second prompt is shifted."""
    old = torch.tensor([[-1.0, -0.5], [-2.0, 0.0], [-0.25, -1.5], [-1.0, -1.0]], dtype=torch.float64)
    new = old + torch.tensor([[0.1, 0.2], [-0.3, 0.0], [0.5, -0.1], [-0.05, 0.02]], dtype=torch.float64)
    mask = torch.tensor([[1, 1], [1, 0], [1, 1], [1, 1]]).bool()
    scores = torch.tensor([1.0, 0.25, -0.5, 0.625], dtype=torch.float64) + shift * torch.tensor([0, 0, 1, 1])
    zeros = torch.zeros_like(old)
    batch = TokenBatch(
        zeros.long(), mask, mask, old, zeros, torch.tensor([0, 0, 1, 1]), torch.ones(4), scores, torch.zeros(4).bool()
    )
    return batch, TokenLogProbs((new * mask).requires_grad_(True))


@pytest.mark.parametrize(
    "objective", [PairwiseSurrogate(), PairwiseSurrogate(clip_weights=True), JointPairwiseSurrogate()]
)
def test_constants_of_prompts_leave_loss_and_gradient_identical(objective: Any) -> None:
    """To the last bit, with constants that floats hold exactly."""
    found = []
    for shift in (0.0, 5.0, -1024.0):
        batch, policy = rows(shift)
        loss = objective(batch, policy)
        found.append((loss.tolist(), torch.autograd.grad(loss.sum(), policy.logp)[0].tolist()))
    assert found[0] == found[1] == found[2]


def test_the_formulas() -> None:
    """V1 and V2 of one pair, by hand: u = e^0.3 and e^-0.3, r - r' = 3/4."""
    batch, policy = rows()
    up, down = 2.718281828459045**0.3, 2.718281828459045**-0.3
    one = PairwiseSurrogate(epsilon=0.2)(batch, policy)[:2].tolist()
    assert one == pytest.approx([-0.75 * down * 1.2, 0.75 * up * 0.8], abs=1e-12)
    safe = PairwiseSurrogate(epsilon=0.2, clip_weights=True)(batch, policy)[:2].tolist()
    assert safe == pytest.approx([-0.75 * 0.8 * 1.2, 0.75 * 1.2 * 0.8], abs=1e-12)
    joint = JointPairwiseSurrogate(epsilon=0.5)(batch, policy)[:2].tolist()
    assert joint == pytest.approx([-0.5 * 0.75 * 0.5] * 2, abs=1e-12)
    inside = JointPairwiseSurrogate(epsilon=1.0)(batch, policy)[:2].tolist()
    assert inside == pytest.approx([-0.5 * 0.75 * 0.6] * 2, abs=1e-12)


def test_a_clip_stops_what_has_gained_enough_and_never_what_has_to_come_back() -> None:
    batch, policy = rows()
    slope = torch.autograd.grad(PairwiseSurrogate(epsilon=0.2)(batch, policy).sum(), policy.logp)[0]
    assert slope[0].abs().max() == 0  # u = e^0.3 of the better one
    assert slope[1].abs().max() == 0  # u = e^-0.3 of the worse one
    assert slope[2].abs().max() > 0  # u = e^0.4 of a worse one
    assert slope[3].abs().max() > 0  # inside
    clipped = PairwiseSurrogate(epsilon=0.2).metrics(batch, policy)["pairs_clipped"]
    assert clipped.tolist() == [1.0, 1.0, 0.0, 0.0]


def test_an_answer_alone_teaches_nothing_and_order_has_no_say() -> None:
    batch, policy = rows()
    for objective in (PairwiseSurrogate(), JointPairwiseSurrogate()):
        alone = objective(batch.replace(group=torch.arange(4)), policy)
        assert alone.tolist() == [0.0] * 4
        turn = torch.tensor([3, 0, 2, 1])
        found = objective(batch.rows(turn), TokenLogProbs(policy.logp[turn]))
        torch.testing.assert_close(found, objective(batch, policy)[turn], rtol=1e-12, atol=1e-14)
