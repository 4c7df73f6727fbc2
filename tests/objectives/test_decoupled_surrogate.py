"""The clipped surrogate on rows of an older policy: identities by hand, and by enumeration of all that it could say."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from etude.core.registry import get_method
from etude.core.slots import TokenObjective
from etude.evaluation.exact import expected_gradient, gradient
from etude.loops.bandit import Bandit
from etude.methods.rlvr.hpt import hpt
from etude.objectives.decoupled import DecoupledSurrogate
from etude.objectives.policy_gradient import ClippedSurrogate, PolicyGradient
from etude.objectives.surrogate import Surrogate
from etude.objectives.unified import CurrentDenominator, Hybrid, UnifiedGradient
from etude.policies.tabular import SoftmaxTree
from language_toys import Toy, make_loop

FAR = 1e9
"""A cap, or a clip, that nothing reaches."""


def batches(make_batch: Any, logprobs: Any, behaviour: torch.Tensor, proximal: torch.Tensor) -> tuple[Any, Any]:
    draw = torch.Generator().manual_seed(1)
    advantages = torch.randn(4, 6, generator=draw, dtype=torch.float64)
    batch = make_batch(
        torch.ones(4, 6), behaviour_logp=behaviour, proximal_logp=proximal, advantages=advantages
    )  # fmt: skip
    said = logprobs(proximal + 0.4 * torch.randn(4, 6, generator=draw, dtype=torch.float64))
    said.logp.requires_grad_(True)
    return batch, said


def some(seed: int) -> torch.Tensor:
    return -torch.rand(4, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3


def loss_and_gradient(objective: TokenObjective, batch: Any, said: Any) -> tuple[torch.Tensor, torch.Tensor]:
    loss = objective(batch, said)
    return loss.detach(), torch.autograd.grad(loss.sum(), said.logp)[0]


def test_where_the_proximal_policy_sampled_it_is_the_clipped_surrogate_bit_for_bit(make_batch, logprobs) -> None:
    batch, said = batches(make_batch, logprobs, some(2), some(2))
    clip = {"low": 0.2, "high": 0.28}
    ours, theirs = (
        loss_and_gradient(o, batch, said) for o in (DecoupledSurrogate(**clip), ClippedSurrogate(**clip))
    )  # fmt: skip
    assert torch.equal(ours[0], theirs[0])
    assert torch.equal(ours[1], theirs[1])
    found, plain = (o.metrics(batch, said) for o in (DecoupledSurrogate(**clip), ClippedSurrogate(**clip)))
    assert not found.pop("over_cap").any()
    assert found.keys() == plain.keys()
    assert all(torch.equal(found[k], plain[k]) for k in plain)


def test_where_the_step_begins_the_gradient_is_the_weighted_policy_gradient(make_batch, logprobs) -> None:
    """Identity (a) of ASearcher's row: pi = p, and b = p besides, is REINFORCE with the same advantages."""
    batch, _ = batches(make_batch, logprobs, some(2), some(3))
    said = logprobs(some(3))
    said.logp.requires_grad_(True)
    _, found = loss_and_gradient(DecoupledSurrogate(cap=FAR), batch, said)
    torch.testing.assert_close(found, -(some(3) - some(2)).exp() * batch.advantages, atol=1e-12, rtol=0)
    fresh = batch.replace(behaviour_logp=some(3))
    ours, plain = (loss_and_gradient(o, fresh, said)[1] for o in (DecoupledSurrogate(), PolicyGradient()))
    assert torch.equal(ours, plain)


def test_by_hand_in_every_case_of_clip_and_cap(make_batch, logprobs) -> None:
    """w = 2, 2, 2, 5, 5.1 and 0.5; rho = 1.5, 0.5, 1.5, 1, 1 and 1."""
    weight = torch.tensor([[2.0, 2.0, 2.0, 5.0, 5.1, 0.5]], dtype=torch.float64)
    ratio = torch.tensor([[1.5, 0.5, 1.5, 1.0, 1.0, 1.0]], dtype=torch.float64)
    advantages = torch.tensor([[1.0, 1.0, -1.0, 1.0, 1.0, -3.0]], dtype=torch.float64)
    behaviour = torch.full((1, 6), -4.0, dtype=torch.float64)
    proximal = behaviour + weight.log()
    proximal[0, 3] -= 1e-12  # 5 itself is kept, whatever its logarithm rounds to
    batch = make_batch(
        torch.ones(1, 6), behaviour_logp=behaviour, proximal_logp=proximal, advantages=advantages
    )  # fmt: skip
    said = logprobs(proximal + ratio.log())
    said.logp.requires_grad_(True)
    loss, found = loss_and_gradient(DecoupledSurrogate(low=0.4, high=0.4, cap=5.0), batch, said)
    expected = torch.tensor([[-2.8, -1.0, 3.0, -5.0, 0.0, 1.5]], dtype=torch.float64)
    torch.testing.assert_close(loss, expected, atol=1e-10, rtol=0)
    slopes = torch.tensor([[0.0, -1.0, 3.0, -5.0, 0.0, 1.5]], dtype=torch.float64)  # the clip ends the first
    torch.testing.assert_close(found, slopes, atol=1e-10, rtol=0)
    metrics = DecoupledSurrogate(low=0.4, high=0.4, cap=5.0).metrics(batch, said)
    assert metrics["over_cap"].tolist() == [[0, 0, 0, 0, 1, 0]]
    assert metrics["clip_fraction"].tolist() == [[1, 0, 0, 0, 0, 0]]


def test_what_was_all_but_impossible_when_sampled_is_left_out_and_not_infinite(make_batch, logprobs) -> None:
    batch = make_batch(
        [[1, 1]], behaviour_logp=[[-2000.0, -1.0]], proximal_logp=[[-0.1, -1.0]], advantages=[[1.0, 1.0]]
    )
    said = logprobs(torch.tensor([[-0.1, -1.0]], dtype=torch.float64))
    said.logp.requires_grad_(True)
    loss, found = loss_and_gradient(DecoupledSurrogate(), batch, said)
    assert loss.tolist() == [[0.0, -1.0]]
    assert found.tolist() == [[0.0, -1.0]]


# By enumeration: rows of an older policy, one token long, so that the weight of a token is that of the whole


@pytest.fixture
def bandit() -> Bandit:
    rewards = torch.rand(1, 4, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    return Bandit(SoftmaxTree(1, 4, 1, spread=0.5, seed=0), rewards)


def plain(objective: TokenObjective) -> Any:
    method: Any = get_method("rloo")
    return method.replace(objective=objective)


@pytest.mark.first
def test_on_rows_of_any_older_policy_a_step_begins_with_the_true_gradient(bandit: Bandit) -> None:
    older = SoftmaxTree(1, 4, 1, spread=0.5, seed=5)
    truth = gradient((bandit.policy.probs()[0] * bandit.rewards).sum(), bandit.policy)
    found = -expected_gradient(plain(DecoupledSurrogate(cap=FAR)), bandit, 2, behaviour=older)
    torch.testing.assert_close(found, truth, atol=1e-12, rtol=1e-10)
    coupled = -expected_gradient(plain(ClippedSurrogate()), bandit, 2, behaviour=older)
    assert (coupled - truth).abs().max() > 1e-2, "where the rows are old, a clip around what sampled them is a bias"
    blind = -expected_gradient(plain(PolicyGradient()), bandit, 2, behaviour=older)
    assert (blind - truth).abs().max() > 1e-2


@pytest.mark.first
def test_within_the_clip_it_stays_the_true_gradient_after_the_step_began(bandit: Bandit) -> None:
    older, begun = SoftmaxTree(1, 4, 1, spread=0.5, seed=5), SoftmaxTree(1, 4, 1, spread=0.5, seed=6)
    truth = gradient((bandit.policy.probs()[0] * bandit.rewards).sum(), bandit.policy)
    wide = DecoupledSurrogate(low=1 - 1e-9, high=FAR, cap=FAR)
    found = -expected_gradient(plain(wide), bandit, 2, behaviour=older, proximal=begun)
    torch.testing.assert_close(found, truth, atol=1e-12, rtol=1e-10)
    narrow = -expected_gradient(plain(DecoupledSurrogate(cap=FAR)), bandit, 2, behaviour=older, proximal=begun)
    assert (narrow - truth).abs().max() > 1e-3


# In a run


def test_the_proximal_policy_is_the_one_that_the_step_began_with() -> None:
    """Two epochs: the second is measured from where the step began, not from where the first ended."""
    method: Any = get_method("grpo").replace(objective=DecoupledSurrogate(), problems=3, epochs=2)
    seen: list[torch.Tensor] = []
    loop, objective = make_loop(method, Toy(), steps=2), DecoupledSurrogate.__call__

    def watched(self: DecoupledSurrogate, batch: Any, policy: Any) -> torch.Tensor:
        gap = (policy.logp.detach() - batch.proximal_logp)[batch.action_mask].abs().max()
        seen.append(gap)
        return objective(self, batch, policy)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DecoupledSurrogate, "__call__", watched)
        loop.step()
    assert seen[0] < 1e-6 < seen[-1]


def test_which_objectives_need_fresh_rows() -> None:
    class Own(TokenObjective, abstract=True):
        """Knows better."""

        fresh_rows = False  # type: ignore[assignment]

    needy = (PolicyGradient(), UnifiedGradient(denominator=CurrentDenominator()),
             Hybrid(sampled=PolicyGradient()))  # fmt: skip
    able = (DecoupledSurrogate(), ClippedSurrogate(), Surrogate(), UnifiedGradient(), Hybrid(), hpt.objective, Own())
    assert all(objective.fresh_rows for objective in needy)
    assert not any(objective is not None and objective.fresh_rows for objective in able)


@pytest.mark.parametrize("wrong", [{"cap": 0.0}, {"low": 1.0}, {"high": 0.0}])
def test_ranges_of_the_decoupled_surrogate(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"must be"):
        DecoupledSurrogate(**wrong)
