"""DPO and Bradley-Terry: an independent few-line computation, the gradient, and what order cannot change."""

from __future__ import annotations

import math

import pytest
import torch

from etude.objectives.preference import DPO, BradleyTerry, compare

MASK = [[0, 1, 1, 0], [0, 1, 1, 1], [0, 1, 0, 0], [0, 0, 1, 1]]
CHANGES = {"group": [0, 0, 1, 1], "scores": [1.0, 0.0, 0.0, 1.0]}  # the second pair is stored worse row first


def tensors(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    mask = torch.tensor(MASK)
    return tuple(-torch.rand(4, 4, generator=g, dtype=torch.float64) * mask for _ in range(2))


def independent_dpo(logp: torch.Tensor, ref: torch.Tensor, beta: float, smoothing: float) -> float:
    ratio = [sum(logp[i].tolist()) - sum(ref[i].tolist()) for i in range(4)]
    losses = []
    for chosen, rejected in ((0, 1), (3, 2)):
        p = 1 / (1 + math.exp(-beta * (ratio[chosen] - ratio[rejected])))
        losses.append(-(1 - smoothing) * math.log(p) - smoothing * math.log(1 - p))
    return sum(losses) / 2


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("beta", [0.1, 2.0])
def test_dpo_against_an_independent_computation(make_batch, logprobs, beta: float, smoothing: float) -> None:
    logp, ref = tensors()
    batch = make_batch(MASK, reference_logp=ref, **CHANGES)
    loss = DPO(beta=beta, label_smoothing=smoothing)(batch, logprobs(logp))
    assert loss.shape == (4,)
    assert loss.mean().item() == pytest.approx(independent_dpo(logp, ref, beta, smoothing), abs=1e-12)


def test_at_the_reference_the_loss_is_log_2(make_batch, logprobs) -> None:
    logp, _ = tensors()
    batch = make_batch(MASK, reference_logp=logp, **CHANGES)
    assert DPO()(batch, logprobs(logp)).tolist() == pytest.approx([math.log(2)] * 4, abs=1e-12)


def test_dpo_gradient(make_batch, logprobs) -> None:
    """-beta sigmoid(-margin) (grad log pi(chosen) - grad log pi(rejected)); grad of a row's log pi is 1 per token."""
    logp, ref = tensors(1)
    batch, said, beta = make_batch(MASK, reference_logp=ref, **CHANGES), logprobs(logp.clone()), 0.7
    said.logp.requires_grad_(True)
    (found,) = torch.autograd.grad(DPO(beta=beta)(batch, said).mean(), said.logp)
    ratio = (logp - ref).sum(1)
    for chosen, rejected in ((0, 1), (3, 2)):
        strength = beta * torch.sigmoid(-beta * (ratio[chosen] - ratio[rejected])) / 2  # two pairs
        mask = torch.tensor(MASK, dtype=torch.float64)
        torch.testing.assert_close(found[chosen], -strength * mask[chosen], atol=1e-12, rtol=0)
        torch.testing.assert_close(found[rejected], strength * mask[rejected], atol=1e-12, rtol=0)


def test_the_order_of_rows_changes_nothing(make_batch, logprobs) -> None:
    logp, ref = tensors(2)
    batch = make_batch(MASK, reference_logp=ref, **CHANGES)
    turn = torch.tensor([2, 1, 3, 0])
    plain, turned = DPO()(batch, logprobs(logp)), DPO()(batch.rows(turn), logprobs(logp[turn]))
    torch.testing.assert_close(turned, plain[turn], atol=1e-12, rtol=0)


def test_equal_answers_teach_nothing(make_batch, logprobs) -> None:
    logp, ref = tensors()
    batch = make_batch(MASK, reference_logp=ref, group=[0, 0, 1, 1], scores=[1.0, 0.0, 1.0, 1.0])
    loss = DPO()(batch, logprobs(logp))
    assert (loss[:2] > 0).all()
    assert loss[2:].tolist() == [0, 0]


def test_of_a_larger_group_best_and_worst_are_compared() -> None:
    values, scores = torch.tensor([1.0, 10.0, 100.0, 7.0]), torch.tensor([0.5, 0.9, 0.1, 0.0])
    difference, differs = compare(values, scores, torch.tensor([3, 3, 3, 8]))
    assert difference.tolist() == [-90.0, -90.0, -90.0, 0.0]
    assert differs.tolist() == [True, True, True, False]


def test_bradley_terry_reads_the_last_action_token(make_batch, logprobs) -> None:
    values = [[9, 9, 2, 9], [9, 9, 9, 1], [9, 3, 9, 9], [9, 9, 9, 3]]  # 9 stands where nobody may look
    batch = make_batch(MASK, **CHANGES)
    said = logprobs(torch.zeros(4, 4), values=values)
    loss = BradleyTerry()(batch, said)
    assert loss.tolist() == pytest.approx([math.log(1 + math.exp(-1))] * 2 + [math.log(2)] * 2, abs=1e-12)
    assert BradleyTerry().metrics(batch, said)["preference_accuracy"].tolist() == [1, 1, 0, 0]


def test_bradley_terry_knows_differences_only(make_batch, logprobs) -> None:
    g = torch.Generator().manual_seed(0)
    values, shift = torch.randn(4, 4, generator=g).double(), torch.tensor([5.0, 5.0, -2.0, -2.0])[:, None]
    batch = make_batch(MASK, **CHANGES)
    plain = BradleyTerry()(batch, logprobs(torch.zeros(4, 4), values=values))
    moved = BradleyTerry()(batch, logprobs(torch.zeros(4, 4), values=values + shift))
    torch.testing.assert_close(moved, plain, atol=1e-12, rtol=0)
