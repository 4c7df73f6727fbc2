"""PACS: its score, its weights and what its first update is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.errors import ConfigError
from etude.core.registry import get_method
from etude.methods.rlvr.pacs import OutcomePrediction, balance

MASK = [[0, 1, 1, 0], [0, 1, 1, 1], [0, 1, 0, 0], [0, 1, 1, 1], [0, 1, 1, 0], [0, 1, 1, 0], [0, 1, 1, 0], [0, 1, 1, 1]]
RIGHT = [1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0]
GROUP = [0, 0, 0, 0, 1, 1, 1, 1]
BETA = 1.5


def batch_of(make_batch: Callable[..., TokenBatch], **changes: Any) -> TokenBatch:
    random = torch.Generator().manual_seed(0)
    behaviour = -torch.rand(8, 4, generator=random).double() * torch.tensor(MASK)
    return make_batch(MASK, **{"behaviour_logp": behaviour, "scores": RIGHT, "group": GROUP, **changes})


def moved(batch: TokenBatch, size: float) -> Tensor:
    random = torch.Generator().manual_seed(1)
    return batch.behaviour_logp + size * torch.randn(8, 4, generator=random).double()


def sequence_gradient(objective: OutcomePrediction, batch: TokenBatch, logp: Tensor) -> Tensor:
    """d sum of losses / d log pi(y_i), [B]: the same for every token of the row."""
    logp = logp.clone().requires_grad_(True)
    (found,) = torch.autograd.grad(objective(batch, TokenLogProbs(logp)).sum(), logp)
    first = found[:, 1]
    assert torch.equal(found, torch.where(batch.action_mask, first[:, None], 0.0))
    return first


def leave_one_out(scores: Tensor) -> Tensor:
    """4/3 (R - mean) in groups of four, written out."""
    return torch.cat([4 / 3 * (g - g.mean()) for g in scores.split(4)])


def test_the_first_update_is_rloo_times_beta(make_batch) -> None:
    batch = batch_of(make_batch)
    objective = OutcomePrediction(beta=BETA, balanced=False)
    assert not objective.score(batch, TokenLogProbs(batch.behaviour_logp)).any()
    found = sequence_gradient(objective, batch, batch.behaviour_logp)
    torch.testing.assert_close(found, -BETA * leave_one_out(batch.scores), atol=1e-12, rtol=0)
    rloo = get_method("rloo").advantages(batch)[:, 1]
    torch.testing.assert_close(found, -BETA * rloo, atol=1e-12, rtol=0)


def test_with_balanced_weights_it_is_the_difference_of_the_means_of_both_classes(make_batch) -> None:
    """-beta K/(K-1) K/4 [mean of right - mean of wrong]; an equal group stands still."""
    batch = batch_of(make_batch, scores=[1.0, 0.0, 0.0, 0.0, *RIGHT[4:]])
    found = sequence_gradient(OutcomePrediction(beta=BETA), batch, batch.behaviour_logp)
    scale = BETA * 4 / 3 * 4 / 4
    expected = torch.tensor([-scale, scale / 3, scale / 3, scale / 3, 0, 0, 0, 0], dtype=torch.float64)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("compared", ["leave-one-out", "standardized"])
def test_scores_of_a_group_sum_to_nothing_and_a_constant_changes_nothing(make_batch, compared: str) -> None:
    batch = batch_of(make_batch)
    objective, logp = OutcomePrediction(beta=BETA, compared=compared), moved(batch, 0.7)
    psi = objective.score(batch, TokenLogProbs(logp))
    assert psi.abs().min() > 1e-3
    assert all(abs(float(g.sum())) < 1e-12 for g in psi.split(4))
    shifted = logp.clone()
    shifted[:, 1] += 3.0  # one token of every row, so that every rhat grows by 3 beta
    found = objective(batch, TokenLogProbs(shifted))
    torch.testing.assert_close(found, objective(batch, TokenLogProbs(logp)), atol=1e-12, rtol=0)


def test_loss_by_hand(make_batch, logprobs) -> None:
    """rhat = 2, 0, 1: psi = 1.5, -1.5, 0; one right of three: omega = 3/2, 3/4, 3/4."""
    batch = make_batch([[1]] * 3, scores=[1.0, 0.0, 0.0])
    found = OutcomePrediction(beta=2.0)(batch, logprobs([[1.0], [0.0], [0.5]]))
    softplus = [math.log1p(math.exp(-1.5)), math.log1p(math.exp(-1.5)), math.log(2)]
    expected = torch.tensor([1.5 * softplus[0], 0.75 * softplus[1], 0.75 * softplus[2]], dtype=torch.float64)
    torch.testing.assert_close(found, expected, atol=1e-14, rtol=0)


def test_the_gradient_is_the_error_times_the_gradient_of_the_score(make_batch) -> None:
    batch, objective = batch_of(make_batch), OutcomePrediction(beta=BETA)
    logp = moved(batch, 0.5)
    psi = objective.score(batch, TokenLogProbs(logp))
    error = torch.tensor([1.0, 1, 1, 1, 1, 1, 1, 1]).double() * (psi.sigmoid() - batch.scores)
    assert balance(batch.scores, batch.group).tolist() == [1.0] * 8
    found = sequence_gradient(objective, batch, logp)
    torch.testing.assert_close(found, BETA * leave_one_out(error), atol=1e-12, rtol=0)


def test_groups_that_are_all_right_teach_once_the_policy_has_moved(make_batch) -> None:
    batch, objective = batch_of(make_batch), OutcomePrediction()
    assert not sequence_gradient(objective, batch, batch.behaviour_logp)[4:].any()
    assert sequence_gradient(objective, batch, moved(batch, 0.5))[4:].abs().min() > 1e-3


def test_a_right_answer_that_is_well_predicted_stops_teaching(make_batch, logprobs) -> None:
    sizes = []
    for gap in (0.0, 5.0, 20.0, 60.0):
        logp = torch.tensor([[gap], [0.0]], dtype=torch.float64, requires_grad=True)
        batch = make_batch([[1], [1]], scores=[1.0, 0.0])
        (found,) = torch.autograd.grad(OutcomePrediction()(batch, logprobs(logp)).sum(), logp)
        sizes.append(float(found.abs().max()))
    assert sizes[0] == 1.0  # two rows, each pulling with 1/2 on the difference
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < 1e-25


def test_the_score_without_a_reference_is_the_mean_log_probability(make_batch) -> None:
    batch = batch_of(make_batch)
    objective = OutcomePrediction(beta=BETA, implicit="likelihood", compared="none")
    found = objective.score(batch, TokenLogProbs(batch.behaviour_logp))
    expected = [BETA * float(row[mask].mean()) for row, mask in zip(batch.behaviour_logp, batch.action_mask)]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=0)


def test_weights_are_those_of_balanced_classes(make_batch) -> None:
    right = torch.tensor([1.0, 0, 0, 0, 0, 1, 1, 0, 0, 0], dtype=torch.float64)
    group = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2, 2])
    expected = [2, 2 / 3, 2 / 3, 2 / 3, 3 / 2, 3 / 4, 3 / 4, 1, 1, 1]
    torch.testing.assert_close(balance(right, group), torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=0)


def test_a_group_of_one_is_refused() -> None:
    pacs = get_method("pacs")
    with pytest.raises(ConfigError, match="2 or more"):
        pacs.replace(experience=pacs.experience.replace(size=1)).check()
    with pytest.raises(ConfigError):
        OutcomePrediction(beta=-1.0)
