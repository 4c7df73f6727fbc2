"""NFT: its gradient at the policy that sampled is GRPO's kin, its minimiser the policy of right answers."""

from __future__ import annotations

import math
from types import SimpleNamespace as Rows
from typing import Any

import pytest
import torch
from torch import Tensor

from etude.core.errors import EtudeError
from etude.core.fit import check
from etude.core.registry import get_method
from etude.evaluation.exact import expected_gradient
from etude.loops.bandit import Bandit
from etude.methods.rlvr.memory_r_plus import MemoryReward
from etude.methods.rlvr.nft import NegativeAware
from etude.policies.tabular import SoftmaxTree
from etude.rewards.outcome import OverlongPenalty
from etude.rewards.patterns import FormatReward

F64 = torch.float64


@pytest.fixture
def bandit() -> Bandit:
    return Bandit(SoftmaxTree(1, 4, 1, spread=0.7, seed=4), torch.tensor([[0.0, 1.0, 0.0, 1.0]], dtype=F64))


def gradient_by_logp(part: NegativeAware, ratio: list[float], advantages: list[float]) -> Tensor:
    """d loss / d log pi of tokens with these ratios."""
    old = torch.full((1, len(ratio)), -2.0, dtype=F64)
    logp = (old + torch.tensor([ratio], dtype=F64).log()).requires_grad_(True)
    rows = Rows(advantages=torch.tensor([advantages], dtype=F64), behaviour_logp=old)
    (found,) = torch.autograd.grad(part(rows, Rows(logp=logp)).sum(), logp)  # type: ignore[arg-type]
    return found[0]


@pytest.mark.slow
@pytest.mark.parametrize(("weight", "parent"), [("rate", "dr-grpo"), ("odds", "grpo")])
def test_at_the_policy_that_sampled_the_gradient_is_that_of_the_parents(
    weight: str, parent: str, bandit: Bandit
) -> None:
    """Over every group of four samples, exactly: w = 1 - r is Dr. GRPO, w = sqrt((1 - r) / r) is GRPO."""
    from etude.advantages.group import GroupAdvantage, GroupStd

    nft = get_method("nft").replace(filters=(), objective=NegativeAware(weight=weight, edge=1e-9))  # type: ignore[arg-type]
    other = get_method(parent).replace(aggregation="fixed-length")
    if parent == "grpo":
        other = other.replace(advantages=GroupAdvantage(scale=GroupStd(epsilon=0.0)))
    found, wanted = (expected_gradient(m, bandit, 4) for m in (nft, other))
    assert wanted.abs().max() > 1e-3
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)


def test_coefficients_away_from_the_policy_that_sampled() -> None:
    """r = 1/4. Right: -w. Wrong: w r / (1 - r) R / max(x, eps), x = (1 - r R) / (1 - r), held value or not."""
    right, low, high = gradient_by_logp(NegativeAware(eps=0.5), [2.0, 0.8, 3.5], [0.75, -0.25, -0.25]).tolist()
    assert right == pytest.approx(-0.75, abs=1e-12)
    assert low == pytest.approx(0.75 * (0.25 / 0.75) * 0.8 / ((1 - 0.2) / 0.75), abs=1e-12)
    assert high == pytest.approx(0.75 * (0.25 / 0.75) * 3.5 / 0.5, abs=1e-12)  # x = 1/6 is held at a half


def of_token(logp: float, advantage: float) -> tuple[float, float]:
    """The loss of a token that had log-probability 0, and its gradient by the log-probability."""
    now = torch.tensor([[logp]], dtype=F64, requires_grad=True)
    rows = Rows(advantages=torch.tensor([[advantage]], dtype=F64), behaviour_logp=torch.zeros(1, 1, dtype=F64))
    loss = NegativeAware()(rows, Rows(logp=now)).sum()  # type: ignore[arg-type]
    return loss.item(), torch.autograd.grad(loss, now)[0].item()


def test_a_share_of_right_answers_is_held_away_from_none_and_all() -> None:
    """One right of 128: w = 1 - 0.02, not 127/128. One wrong of 128: r = 0.98, so x = (1 - 0.98 R) / 0.02."""
    assert of_token(0.0, 1 - 1 / 128)[1] == pytest.approx(-0.98, abs=1e-12)
    ratio = 0.75
    x = (1 - 0.98 * ratio) / 0.02
    value, slope = of_token(math.log(ratio), -127 / 128)
    assert value == pytest.approx(-0.02 * math.log(x), abs=1e-12)
    assert slope == pytest.approx(0.02 * (0.98 / 0.02) * ratio / x, abs=1e-12)
    assert of_token(math.log(ratio), -0.5)[0] == pytest.approx(-0.5 * math.log((1 - 0.5 * ratio) / 0.5), abs=1e-12)


def test_a_token_that_became_very_likely_teaches_no_more() -> None:
    """log R = 12 counts as 10, without a gradient; 9 is below, and a wrong one passes none on either."""
    assert of_token(12.0, 0.75) == (pytest.approx(-0.75 * 10, abs=1e-12), 0.0)
    assert of_token(9.0, 0.75) == (pytest.approx(-0.75 * 9, abs=1e-12), pytest.approx(-0.75, abs=1e-12))
    assert of_token(12.0, -0.25) == (0.0, 0.0)


def test_held_values_pass_the_gradient_on() -> None:
    """maxv: forward max(x, eps), backward that of x; the release's eps is 1, so that only R < 1 is above it."""
    old = torch.zeros(1, 2, dtype=F64)
    logp = torch.tensor([[0.5, 3.0]], dtype=F64).log().requires_grad_(True)
    rows = Rows(advantages=torch.tensor([[-0.5, -0.5]], dtype=F64), behaviour_logp=old)
    loss = NegativeAware(weight="equal")(rows, Rows(logp=logp))  # type: ignore[arg-type]
    assert loss[0].tolist() == pytest.approx([-float(torch.tensor(1.5).log()), 0.0], abs=1e-7)
    assert torch.autograd.grad(loss.sum(), logp)[0][0].tolist() == pytest.approx([0.5 / 1.5, 3.0], abs=1e-12)


@pytest.mark.slow
def test_the_minimiser_is_the_policy_of_right_answers() -> None:
    """20 outcomes, 7 of them right; r and pi_old exact: the loss of whole answers leads to pi_old where it is right.

    As on samples eps keeps the likelihood of wrong answers, which is 0 / 0 at the minimum, away from the logarithm.
    """
    random = torch.Generator().manual_seed(0)
    old = torch.randn(20, generator=random, dtype=F64).softmax(0)
    solved = torch.arange(20) % 3 == 1
    r = old[solved].sum()
    logits = old.log().clone().requires_grad_(True)
    part, step = NegativeAware(eps=1e-6, weight="equal", edge=1e-9), torch.optim.Adam([logits], lr=0.02)
    rows = Rows(advantages=(solved.double() - r)[:, None], behaviour_logp=old.log()[:, None])
    for _ in range(4000):
        step.zero_grad()
        found = part(rows, Rows(logp=logits.log_softmax(0)[:, None]))[:, 0]  # type: ignore[arg-type]
        (old * found).sum().backward()
        step.step()
    wanted = torch.where(solved, old / r, 0.0)
    torch.testing.assert_close(logits.softmax(0).detach(), wanted, atol=2e-3, rtol=0)


def test_rft_learns_from_right_answers_alone_and_weighs_problems_alike() -> None:
    part = get_method("rft").objective
    found = gradient_by_logp(part, [1.0, 1.5, 0.7], [0.75, 0.25, -0.25])
    assert found.tolist() == [-1.0, -1.0, 0.0]


def test_advantages_that_do_not_say_r_are_refused() -> None:
    with pytest.raises(EtudeError, match=r"share of right answers off advantages.*set advantages.centre=group-mean"):
        check(get_method("grpo").replace(id="mine", objective=NegativeAware()))


@pytest.mark.parametrize("more", [OverlongPenalty(), FormatReward(), MemoryReward()], ids=lambda part: part.name)
def test_scores_that_are_more_than_right_or_wrong_are_refused(more: Any) -> None:
    """With a penalty of 1/8 on one of two right answers r would be read as another number for each of them."""
    nft: Any = get_method("nft")
    words = f"nft.*scores of 0 or 1, and with {type(more).__name__} they are others: leave one reward"
    with pytest.raises(EtudeError, match=words):
        check(nft.replace(rewards=(*nft.rewards, more)))
    check(nft)
