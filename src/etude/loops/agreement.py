"""How far log-probabilities in sampling and in training may lie apart: as far as rounding puts them, and no further."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.errors import InvariantError
from etude.core.kinds import TokenMethod
from etude.loops.noise import Noise
from etude.loops.tally import Tally
from etude.policies.language import LanguagePolicy
from etude.policies.micro_batches import micro_batches
from etude.policies.snapshots import Snapshot, held

if TYPE_CHECKING:
    from etude.core.complete import CompleteTokenMethod

PROBED = 8
"""Rows that are compared where none is of the present weights."""


def of_version(batch: TokenBatch, version: int) -> Tensor:
    """[B, T] True on action tokens that this version of the policy sampled where they stand."""
    mask = batch.action_mask & batch.on_policy[:, None]
    return mask if batch.version is None else mask & (batch.version == version)


def gap_sums(batch: TokenBatch, policy: TokenLogProbs, truncated: bool, version: int) -> Tensor:
    """[4] count, sum, sum of squares and largest of the |gaps| of tokens that this version sampled where they stand."""
    mask = of_version(batch, version)
    gaps = policy.logp.detach().double() - batch.behaviour_logp.double()
    # what top-p or top-k leaves is likelier than under the policy; only the other way round is it a fault
    gaps = torch.where(mask, gaps.clamp(min=0) if truncated else gaps.abs(), 0.0)
    return torch.stack([mask.sum().double(), gaps.sum(), gaps.square().sum(), gaps.max()])


def comparable(method: TokenMethod) -> bool:
    """Whether log-probabilities of samples are those that training computes."""
    assert method.experience is not None
    return method.experience.samples and not method.experience.retempers


def probed(
    policy: LanguagePolicy, method: CompleteTokenMethod, batch: TokenBatch, budget: int, older: Sequence[Snapshot],
    present: bool,
) -> list[Tensor]:  # fmt: skip
    """`gap_sums` of a few rows, where those that are learned from cannot say them.

    Args:
        older: the weights that sampled them, where these are others; the policy has them for as long as this takes.
        present: whether the policy has the weights that sampled. Then rows are only needed under autocast, where the
            sampler is more precise: what that rounds may be ten times as much after a step as it was before.
    """
    found = list[Tensor]()
    for snapshot in older:
        with held(policy, snapshot.tensors()):
            found += _of_few(policy, method, batch, snapshot.version, budget, policy.evaluate)
    if present and policy.sampler_is_more_precise:
        found += _of_few(policy, method, batch, policy.version, budget, policy.evaluate_together)
    return found


@torch.no_grad()
def _of_few(
    policy: LanguagePolicy, method: CompleteTokenMethod, batch: TokenBatch, version: int, budget: int,
    evaluate: Callable[[TokenBatch], TokenLogProbs],
) -> list[Tensor]:  # fmt: skip
    """`gap_sums` of a few rows of a version, under the weights that the policy has, as precise as its sampler is."""
    rows, found = batch.rows(of_version(batch, version).any(1).nonzero()[:PROBED, 0], trim=True), list[Tensor]()
    with policy.as_precise_as_its_sampler():
        for piece in micro_batches(policy, rows, budget) if len(rows) else ():
            micro = rows.rows(piece, trim=True)
            found.append(gap_sums(micro, evaluate(micro), method.experience.truncates_distribution, version))
    return found


def compare(gaps: Sequence[Tensor], noise: Noise, policy: LanguagePolicy, tally: Tally) -> None:
    """Invariant 1: the sampler's log-probabilities are the trainer's, but for the rounding measured so far.

    Args:
        gaps: `gap_sums` of micro-batches.
    """
    found = torch.stack([*gaps]).cpu() if gaps else torch.zeros(1, 4)
    count, total, _, _ = found.sum(0).tolist()
    if not count:
        return
    dtype = torch.bfloat16 if policy.shadow else policy.dtype
    bound = noise.bound(int(count), dtype)
    tally.add("logp_gap", total, count)
    tally.add("logp_gap_bound", bound)
    if not total / count <= bound:
        raise InvariantError(
            f"Fresh samples have log-probabilities that differ by {total / count:.3g} nats per token on "
            f"average (largest {float(found[:, 3].max()):.3g}) between sampling and training; at most {bound:.3g} "
            "is rounding. The sampler used other weights, another temperature or a truncated distribution, or "
            "tokens were changed after sampling. Nothing was updated with this batch."
        )
    noise.take(found[:, :3].sum(0))  # the sampler's weights carried the right fingerprint when the step began
