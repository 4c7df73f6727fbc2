"""Labels, rankings and ratings: independent computations, what leaves them as they are, and where they are least."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from etude.objectives.preference import BradleyTerry
from etude.objectives.scorers import OrderClassifier, PlackettLuce, Ratings, label_loss, ranking_loss

MASK = [[0, 1, 1, 0], [0, 1, 1, 1], [0, 1, 0, 0], [0, 0, 1, 1], [0, 1, 0, 0]]
GROUPS = [4, 4, 4, 9, 9]


def read(last: list[float], mask: list[list[int]] = MASK) -> torch.Tensor:
    """Values [B, T] of which only the one at each row's last action token may be looked at."""
    found = torch.full((len(mask), len(mask[0])), 99.0, dtype=torch.float64)
    for row, value in enumerate(last):
        found[row, max(t for t, m in enumerate(mask[row]) if m)] = value
    return found


def loss(part: Any, make_batch: Any, logprobs: Any, last: list[float], scores: list[float]) -> torch.Tensor:
    batch = make_batch(MASK, group=GROUPS, scores=scores)
    found: torch.Tensor = part(batch, logprobs(torch.zeros(5, 4), values=read(last)))
    return found


def test_the_classifier_against_an_independent_computation(make_batch: Any, logprobs: Any) -> None:
    last, scores = [0.3, -1.2, 2.0, 0.0, 0.7], [1.0, 0.0, 0.5, 0.51, -3.0]
    found = loss(OrderClassifier(), make_batch, logprobs, last, scores)
    wanted = [-math.log(1 / (1 + math.exp(-v if s > 0.5 else v))) for v, s in zip(last, scores)]
    assert found.tolist() == pytest.approx(wanted, abs=1e-12)


def test_rankings_against_products_of_chances(make_batch: Any, logprobs: Any) -> None:
    last = [0.3, -1.2, 2.0, 0.0, 0.7]
    found = loss(PlackettLuce(), make_batch, logprobs, last, [2.0, 7.0, 5.0, 0.0, 1.0])
    e = [math.exp(v) for v in last]
    first = e[1] / (e[1] + e[2] + e[0]) * e[2] / (e[2] + e[0])
    second = e[4] / (e[4] + e[3])
    assert found.tolist() == pytest.approx([-math.log(first)] * 3 + [-math.log(second)] * 2, abs=1e-12)
    plain = ranking_loss(torch.tensor([last[1], last[2], last[0]], dtype=torch.float64))
    assert plain.item() == pytest.approx(-math.log(first), abs=1e-12)


def test_chances_of_all_orders_add_up_to_one() -> None:
    values = torch.tensor([0.3, -1.0, 2.0, 0.1], dtype=torch.float64)
    orders = torch.stack([values[list(order)] for order in itertools.permutations(range(4))])
    assert torch.exp(-ranking_loss(orders)).sum().item() == pytest.approx(1, abs=1e-12)


def test_of_two_answers_a_ranking_is_bradley_and_terry(make_batch: Any, logprobs: Any) -> None:
    mask = [[1, 1, 0], [1, 0, 0]]
    batch = make_batch(mask, scores=[0.0, 1.0])
    said = logprobs(torch.zeros(2, 3), values=read([0.4, -0.9], mask))
    torch.testing.assert_close(PlackettLuce()(batch, said), BradleyTerry()(batch, said), atol=1e-14, rtol=0)


def test_equals_stand_in_no_order(make_batch: Any, logprobs: Any) -> None:
    """Two that are paid the same: each beats the third, and neither the other."""
    found = loss(PlackettLuce(), make_batch, logprobs, [0.3, -1.2, 2.0, 0.0, 0.0], [1.0, 1.0, 0.0, 5.0, 5.0])
    wanted = math.log(1 + math.exp(2.0 - 0.3)) + math.log(1 + math.exp(2.0 + 1.2))
    assert found.tolist() == pytest.approx([wanted] * 3 + [0.0] * 2, abs=1e-12)


@pytest.mark.parametrize("part", [BradleyTerry(), PlackettLuce()])
def test_a_constant_of_the_prompt_changes_no_comparison(make_batch: Any, logprobs: Any, part: Any) -> None:
    last, scores = [0.3, -1.2, 2.0, 0.0, 0.7], [2.0, 7.0, 5.0, 0.0, 1.0]
    moved = [v + (5.0 if g == 4 else -3.0) for v, g in zip(last, GROUPS)]
    plain = loss(part, make_batch, logprobs, last, scores)
    torch.testing.assert_close(loss(part, make_batch, logprobs, moved, scores), plain, atol=1e-12, rtol=0)
    labels = loss(OrderClassifier(), make_batch, logprobs, last, scores)
    assert (loss(OrderClassifier(), make_batch, logprobs, moved, scores) - labels).abs().min() > 1e-3


def test_ratings(make_batch: Any, logprobs: Any) -> None:
    found = loss(Ratings(), make_batch, logprobs, [0.5, 0.0, 2.0, 1.0, -1.0], [2.5, 0.0, 1.0, 1.0, 1.0])
    assert found.tolist() == [4.0, 0.0, 1.0, 0.0, 4.0]


def test_the_best_discriminator_is_the_log_ratio_of_densities_and_leads_to_the_demonstrator() -> None:
    """Six answers: the loss's gradient is 0 at log p - log q, and q exp(r) / Z is p itself."""
    p, q = (torch.rand(6, generator=torch.Generator().manual_seed(s)).double().add(0.1) for s in (0, 1))
    p, q = p / p.sum(), q / q.sum()
    odds = (p.log() - q.log()).requires_grad_(True)
    good, bad = torch.ones(6, dtype=torch.bool), torch.zeros(6, dtype=torch.bool)
    expected = (p * label_loss(odds, good)).sum() + (q * label_loss(odds, bad)).sum()
    (slope,) = torch.autograd.grad(expected, odds)
    assert slope.abs().max() < 1e-15
    elsewhere = (odds + 0.1).detach()
    assert (p * label_loss(elsewhere, good)).sum() + (q * label_loss(elsewhere, bad)).sum() > expected.detach()

    def worth(policy: torch.Tensor) -> torch.Tensor:
        return (policy * (odds.detach() - policy.log() + q.log())).sum()  # E[r] - KL(policy || q), beta = 1

    logits = q.log().clone().requires_grad_(True)
    optimizer = torch.optim.LBFGS([logits], max_iter=200, tolerance_grad=1e-14, tolerance_change=1e-16)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        short = -worth(logits.softmax(0))
        short.backward()
        return short

    optimizer.step(closure)
    torch.testing.assert_close(logits.detach().softmax(0), p, atol=1e-8, rtol=0)
    torch.testing.assert_close((q.log() + odds.detach()).softmax(0), p, atol=1e-15, rtol=0)


def test_what_they_report(make_batch: Any, logprobs: Any) -> None:
    batch = make_batch(MASK, group=GROUPS, scores=[2.0, 7.0, 0.5, 0.0, 0.0])
    said = logprobs(torch.zeros(5, 4), values=read([1.0, -1.0, -2.0, -1.0, 3.0]))
    assert OrderClassifier().metrics(batch, said)["classified"].tolist() == [1, 0, 1, 1, 0]
    assert PlackettLuce().metrics(batch, said)["preference_accuracy"].tolist() == [1, 0.5, 0.5, 0.5, 0.5]
    assert Ratings().metrics(batch, said)["error"].tolist() == [-1, -8, -2.5, -1, 3]
