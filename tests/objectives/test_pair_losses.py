"""The pair core: every loss of a pair against its paper's formula, what one loss is of another, and what is refused.

All cross-identities are exact, in float64, on answers of different lengths.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.errors import ConfigError
from etude.core.registry import get_method
from etude.methods.preference.refuel import RelativeFutures
from etude.objectives.links import ContrastiveReward, Hinge, Link, Logistic, SquaredToConstant, SquaredToReward
from etude.objectives.pairs import (
    AllPairs,
    BehaviourPolicy,
    BestAndWorst,
    LogOdds,
    LogRatio,
    PairLoss,
    ReferencePolicy,
)
from etude.objectives.preference import DPO

LENGTHS = [2, 3, 1, 4, 2, 2]
GROUP = [0, 0, 1, 1, 2, 2]
SCORES = [0.75, -0.5, -1.0, 2.0, 0.5, 0.5]
"""The second pair stands worse row first, the third is one of equals."""
NEITHER = LogRatio(denominators=())
BEHAVIOUR = LogRatio(denominators=(BehaviourPolicy(),))
Make = Callable[..., TokenBatch]


def rows(make_batch: Make, **changes: Any) -> tuple[TokenBatch, TokenLogProbs]:
    """Three pairs, and a policy that differs from the reference and from whoever sampled."""
    draw = torch.Generator().manual_seed(3)
    mask = torch.tensor([[0] + [int(t < n) for t in range(4)] for n in LENGTHS])
    policy, reference, behaviour = (-torch.rand(6, 5, generator=draw).double() * mask for _ in range(3))
    fields = {"group": GROUP, "scores": SCORES, "reference_logp": reference, "behaviour_logp": behaviour, **changes}
    return make_batch(mask.tolist(), **fields), TokenLogProbs(policy.requires_grad_(True))


def halves(values: Tensor, batch: TokenBatch) -> tuple[Tensor, Tensor]:
    """Sums of values [B, T] over the better and over the worse answers of the two pairs that differ."""
    total = (values * batch.action_mask).sum(1)
    return total[[0, 3]], total[[1, 2]]


def margin(batch: TokenBatch, policy: TokenLogProbs, *others: Tensor) -> Tensor:
    better, worse = halves(policy.logp - sum(others, torch.zeros(())), batch)
    return better - worse


def gradient(loss: Tensor, policy: TokenLogProbs) -> Tensor:
    return torch.autograd.grad(loss.mean(), policy.logp)[0]


def same(one: PairLoss | DPO, other: PairLoss, factor: float, batch: TokenBatch, policy: TokenLogProbs) -> None:
    """That a loss is so many times another, and its gradient too, and neither is nothing."""
    losses = one(batch, policy), factor * other(batch, policy)
    torch.testing.assert_close(*losses, rtol=1e-12, atol=1e-14)
    gradients = gradient(losses[0], policy), gradient(losses[1], policy)
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-14)
    assert float(gradients[0].norm()) > 1e-3


# Each loss against its formula


def dpo_of(m: Tensor, gap: Tensor) -> Tensor:
    return -0.9 * logsigmoid(0.3 * m) - 0.1 * logsigmoid(-0.3 * m)


LINKS: list[tuple[Link, Callable[[Tensor, Tensor], Tensor]]] = [
    (Logistic(beta=0.3, label_smoothing=0.1), dpo_of),
    (Logistic(beta=2.0, target=0.5), lambda m, gap: (1 + (0.5 - 2 * m).exp()).log()),
    (SquaredToConstant(beta=0.25), lambda m, gap: (m - 2) ** 2),
    (SquaredToReward(eta=0.5), lambda m, gap: (m - 0.5 * gap) ** 2),
    (ContrastiveReward(beta=0.5), lambda m, gap: (gap - 0.5 * m) ** 2),
    (Hinge(beta=2.0, target=1.0), lambda m, gap: torch.relu(1 - 2 * m)),
]


@pytest.mark.parametrize(("link", "formula"), LINKS, ids=[link.name + str(n) for n, (link, _) in enumerate(LINKS)])
def test_each_link(make_batch: Make, link: Link, formula: Callable[[Tensor, Tensor], Tensor]) -> None:
    batch, policy = rows(make_batch)
    expected = formula(margin(batch, policy, batch.reference_logp), torch.tensor([1.25, 3.0]).double())
    loss = PairLoss(link=link)(batch, policy)
    torch.testing.assert_close(loss[[0, 3]], expected, rtol=1e-12, atol=1e-14)
    assert loss[[1, 2]].tolist() == loss[[0, 3]].tolist()  # a group's on all its rows
    if link.orders:
        assert loss[4:].tolist() == [0, 0]
    else:  # equals are to stay as likely as they were, one against the other
        last = ((policy.logp - batch.reference_logp) * batch.action_mask).sum(1)[4:]
        same_gap = link(last[:1] - last[1:], torch.zeros(1).double())
        torch.testing.assert_close(loss[4:], same_gap.expand(2), rtol=1e-12, atol=1e-14)


def test_implicit_rewards(make_batch: Make) -> None:
    batch, policy = rows(make_batch)
    logp, count = policy.logp.detach(), torch.tensor(LENGTHS).double()
    of = {
        NEITHER: logp.sum(1),
        BEHAVIOUR: (logp - batch.behaviour_logp).sum(1),
        LogRatio(per_token=True): (logp - batch.reference_logp).sum(1) / count,
        LogRatio(denominators=(ReferencePolicy(weight=0.25), BehaviourPolicy(weight=0.75))): (
            logp - 0.25 * batch.reference_logp - 0.75 * batch.behaviour_logp
        ).sum(1),
        LogOdds(): torch.tensor(
            [math.log(p / (1 - p)) for p in (logp.sum(1) / count).exp().tolist()], dtype=count.dtype
        ),
    }
    for part, expected in of.items():
        torch.testing.assert_close(part(batch, policy).detach(), expected, rtol=1e-12, atol=1e-13)


def test_the_odds_of_a_certain_answer_are_finite() -> None:
    said = TokenLogProbs(torch.zeros(1, 2, requires_grad=True))
    batch: Any = type("Rows", (), {"action_mask": torch.ones(1, 2), "action_counts": torch.tensor([2])})()
    batch.once = lambda: None
    value = LogOdds()(batch, said)
    value.sum().backward()
    assert torch.isfinite(value).all() and said.logp.grad is not None and torch.isfinite(said.logp.grad).all()


def test_the_best_answers_likelihood(make_batch: Make) -> None:
    """Per token, of the better answer alone, and of no answer among equals."""
    batch, policy = rows(make_batch)
    more = PairLoss(nll=2.0)(batch, policy) - PairLoss()(batch, policy)
    total = -policy.logp.sum(1) / torch.tensor(LENGTHS)
    expected = 2 * torch.stack([total[0], total[0], total[3], total[3], 0 * total[4], 0 * total[4]])
    torch.testing.assert_close(more, expected, rtol=1e-12, atol=1e-13)


# One loss is another


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_defaults_are_dpo_bit_for_bit(make_batch: Make, smoothing: float) -> None:
    batch, policy = rows(make_batch)
    for cast in (torch.float64, torch.float32):
        narrow = batch.replace(reference_logp=batch.reference_logp.to(cast))
        said = TokenLogProbs(policy.logp.detach().to(cast).requires_grad_(True))
        one = DPO(beta=0.7, label_smoothing=smoothing)(narrow, said)
        other = PairLoss(link=Logistic(beta=0.7, label_smoothing=smoothing))(narrow, said)
        assert one.tolist() == other.tolist()
        assert gradient(one, said).tolist() == gradient(other, said).tolist()


@pytest.mark.parametrize("beta", [0.1, 1.5])
def test_copg_at_a_quarter_is_half_beta_of_ipo(make_batch: Make, beta: float) -> None:
    """R = +-1/4 (arXiv:2406.19185, section 4): (1/2 - beta m)^2 / (2 beta) = beta/2 (m - 1/(2 beta))^2."""
    batch, policy = rows(make_batch, scores=[0.25, -0.25, -0.25, 0.25, 0.25, -0.25])
    same(PairLoss(link=ContrastiveReward(beta=beta)), PairLoss(link=SquaredToConstant(beta=beta)), beta / 2, batch,
         policy)  # fmt: skip


@pytest.mark.parametrize("beta", [0.1, 1.5])
def test_copg_is_half_beta_of_rebel_with_the_reference_for_good(make_batch: Make, beta: float) -> None:
    batch, policy = rows(make_batch)
    batch = batch.replace(behaviour_logp=batch.reference_logp)
    same(PairLoss(link=ContrastiveReward(beta=beta)), PairLoss(link=SquaredToReward(eta=1 / beta), of=BEHAVIOUR),
         beta / 2, batch, policy)  # fmt: skip


def inpo(tau: float, eta: float) -> PairLoss:
    """INPO's denominators: ref^(tau / eta) pi_t^(1 - tau / eta)."""
    held = () if tau == eta else (BehaviourPolicy(weight=1 - tau / eta),)
    return PairLoss(
        link=SquaredToConstant(beta=eta), of=LogRatio(denominators=(ReferencePolicy(weight=tau / eta), *held))
    )


def test_inpo_at_tau_equal_eta_is_ipo(make_batch: Make) -> None:
    batch, policy = rows(make_batch)
    same(inpo(0.2, 0.2), PairLoss(link=SquaredToConstant(beta=0.2)), 1.0, batch, policy)
    apart = inpo(0.2 * (1 - 1e-9), 0.2)(batch, policy) - inpo(0.2, 0.2)(batch, policy)
    assert 0 < float(apart.detach().abs().max()) < 1e-7  # and continuous there


def test_inpos_formula(make_batch: Make) -> None:
    batch, policy = rows(make_batch)
    h = margin(batch, policy, batch.reference_logp / 3, 2 * batch.behaviour_logp / 3)
    expected = (h - 1 / (2 * 0.3)) ** 2
    torch.testing.assert_close(inpo(0.1, 0.3)(batch, policy)[[0, 3]], expected, rtol=1e-12, atol=1e-14)


def test_length_normalised_dpo_is_dpo_with_beta_over_length_at_equal_length(make_batch: Make) -> None:
    draw, mask = torch.Generator().manual_seed(5), [[0, 1, 1, 1, 1]] * 4
    policy, reference = (-torch.rand(4, 5, generator=draw).double() * torch.tensor(mask) for _ in range(2))
    batch = make_batch(mask, group=[0, 0, 1, 1], scores=[1.0, 0.0, 0.0, 1.0], reference_logp=reference)
    said = TokenLogProbs(policy.requires_grad_(True))
    tulu = PairLoss(link=Logistic(beta=5.0), of=LogRatio(per_token=True))
    same(tulu, PairLoss(link=Logistic(beta=5.0 / 4)), 1.0, batch, said)
    same(DPO(beta=5.0 / 4), tulu, 1.0, batch, said)


def test_refuel_with_one_turn_is_rebel(make_batch: Make) -> None:
    """The return of the dialogue is the answer's reward then: (log pi/pi_t (y) - log pi/pi_t (y') - [R - R'])^2."""
    refuel, rebel = (get_method(name).slots()["objective"] for name in ("refuel", "rebel"))
    batch, policy = rows(make_batch)
    same(refuel, rebel, 1.0, batch, policy)
    m = margin(batch, policy, batch.behaviour_logp)
    expected = (m - torch.tensor([1.25, 3.0]).double()) ** 2
    torch.testing.assert_close(refuel(batch, policy)[[0, 3]], expected, rtol=1e-12, atol=1e-14)
    assert RelativeFutures(size=2).size == get_method("rebel").slots()["experience"].size


def test_rebels_gradient_where_it_begins_is_rloos(make_batch: Make) -> None:
    """At theta = theta_t: -2 eta (r - r') (grad log pi - grad log pi'), 2 eta of the two-sample leave-one-out's."""
    rloo, eta = get_method("rloo"), 0.7
    batch, policy = rows(make_batch)
    batch = batch.replace(behaviour_logp=policy.logp.detach().clone())
    found = gradient(PairLoss(link=SquaredToReward(eta=eta), of=BEHAVIOUR)(batch, policy), policy)
    per_token = rloo.objective(batch.replace(advantages=rloo.advantages(batch)), policy)
    total = (per_token * batch.action_mask).sum(1)
    torch.testing.assert_close(found, 2 * 2 * eta * gradient(total, policy), rtol=1e-12, atol=1e-14)
    assert float(found.norm()) > 0.1
    # the mean over rows has each pair twice, of which RLOO's has each answer once: hence the other factor of 2


def test_what_is_paid_for_the_prompt_changes_nothing(make_batch: Make) -> None:
    batch, policy = rows(make_batch)
    moved = batch.replace(scores=batch.scores + torch.tensor([4.0, 4.0, -2.0, -2.0, 8.0, 8.0]))
    for link in (SquaredToReward(eta=0.7), ContrastiveReward(beta=0.3)):
        assert PairLoss(link=link)(moved, policy).tolist() == PairLoss(link=link)(batch, policy).tolist()


# Which pairs


def test_all_pairs_of_copg_are_leave_one_out(make_batch: Make) -> None:
    """The mean over pairs has the gradient of advantages R - (mean of the others' R), R = r - beta log ratio."""
    batch, policy = rows(make_batch, group=[0, 0, 0, 0, 1, 1], scores=[0.5, 1.0, -1.0, 2.0, 0.0, 0.25])
    beta = 0.4
    found = gradient(PairLoss(link=ContrastiveReward(beta=beta), choice=AllPairs())(batch, policy)[:4], policy)
    ratio = ((policy.logp - batch.reference_logp) * batch.action_mask).sum(1).detach()[:4]
    value = batch.scores[:4] - beta * ratio
    left_out = value - (value.sum() - value) / 3
    logp = (policy.logp * batch.action_mask).sum(1)[:4]
    expected = gradient(-(left_out * logp) / 2, policy) * 4  # 3 of 6 pairs hold an answer
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


def test_all_pairs_that_are_ordered(make_batch: Make) -> None:
    """RRHF's ranking: a group's mean over the pairs whose scores differ."""
    batch, policy = rows(make_batch, group=[0, 0, 0, 1, 1, 1], scores=[1.0, 0.0, 1.0, 3.0, 2.0, 1.0])
    loss = PairLoss(link=Hinge(target=9.0), of=LogRatio(denominators=(), per_token=True), choice=AllPairs())
    p = (policy.logp.sum(1) / torch.tensor(LENGTHS)).tolist()
    first = [9 - p[0] + p[1], 9 - p[2] + p[1]]
    second = [9 - p[3] + p[4], 9 - p[3] + p[5], 9 - p[4] + p[5]]
    assert loss(batch, policy).tolist() == pytest.approx([sum(first) / 2] * 3 + [sum(second) / 3] * 3, abs=1e-12)


@pytest.mark.parametrize("choice", [BestAndWorst(), AllPairs()])
def test_the_order_of_rows_changes_nothing(make_batch: Make, choice: Any) -> None:
    batch, policy = rows(make_batch, group=[0, 0, 0, 1, 1, 1], scores=[1.0, 0.0, 0.5, 3.0, 2.0, 1.0])
    turn = torch.tensor([4, 2, 0, 5, 3, 1])
    loss = PairLoss(link=SquaredToReward(eta=0.7), choice=choice, nll=0.5)
    plain, turned = loss(batch, policy), loss(batch.rows(turn), TokenLogProbs(policy.logp[turn]))
    torch.testing.assert_close(turned, plain[turn], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("loss", [DPO(), PairLoss(), PairLoss(nll=0.5), PairLoss(choice=AllPairs())])
def test_of_equally_good_answers_the_same_are_taken_in_whatever_order(make_batch: Make, loss: Any) -> None:
    """So that the gradient does not depend on how a batch is cut up, which puts rows in another order."""
    scores = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0]
    batch, policy = rows(make_batch, group=[0, 0, 0, 0, 0, 0], scores=scores, episode=torch.arange(6))
    turn = torch.tensor([4, 2, 0, 5, 3, 1])
    plain, turned = loss(batch, policy), loss(batch.rows(turn), TokenLogProbs(policy.logp[turn]))
    torch.testing.assert_close(turned, plain[turn], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("choice", [BestAndWorst(), AllPairs()])
@pytest.mark.parametrize("link", [Logistic(), SquaredToReward()])
def test_an_answer_alone_teaches_nothing(make_batch: Make, choice: Any, link: Link) -> None:
    batch, policy = rows(make_batch, group=[0, 1, 2, 3, 4, 5])
    loss = PairLoss(link=link, choice=choice)(batch, policy)
    assert loss.tolist() == [0.0] * 6
    assert gradient(loss, policy).abs().max() == 0


def test_an_episode_of_several_rows_is_one_answer(make_batch: Make) -> None:
    """Two rows of the first pair's better answer hold its tokens between them."""
    batch, policy = rows(make_batch)
    place = torch.tensor([0, 0, 1, 2, 3, 4, 5])
    mask = batch.action_mask[place].clone()
    mask[0, 2:], mask[1, :2] = False, False
    several = batch.rows(place).replace(action_mask=mask, episode=place)
    for loss in (PairLoss(nll=0.5), PairLoss(link=SquaredToReward(), of=LogRatio(per_token=True), choice=AllPairs())):
        whole = loss(batch, policy)
        found = loss(several, replace(policy, logp=policy.logp[place]))
        torch.testing.assert_close(found, whole[place], rtol=1e-12, atol=1e-14)


def test_metrics(make_batch: Make) -> None:
    batch, policy = rows(make_batch)
    found = PairLoss().metrics(batch, policy)
    m = margin(batch, policy, batch.reference_logp)
    torch.testing.assert_close(found["margin"][[0, 3]], m, rtol=1e-12, atol=1e-14)
    assert found["margin"][4:].tolist() == [0, 0]
    assert found["preference_accuracy"].tolist() == [*[float(m[0] > 0)] * 2, *[float(m[1] > 0)] * 2, 0.5, 0.5]


# What is refused


@pytest.mark.parametrize(
    ("denominators", "sentence"),
    [
        ((ReferencePolicy(), BehaviourPolicy()), "with weights that add up to 2"),
        ((ReferencePolicy(weight=0.5), ReferencePolicy(weight=0.5)), "must be different policies"),
    ],
)
def test_two_denominators_without_weights_are_refused(denominators: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        LogRatio(denominators=denominators)
