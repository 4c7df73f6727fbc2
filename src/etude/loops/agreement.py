"""How far log-probabilities in sampling and in training may lie apart: as far as rounding puts them, and no further."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.errors import InvariantError
from etude.core.kinds import TokenMethod
from etude.loops.tally import Tally
from etude.policies.language import LanguagePolicy
from etude.policies.micro_batches import micro_batches
from etude.policies.snapshots import Snapshot, held

if TYPE_CHECKING:
    from etude.core.complete import CompleteTokenMethod

FLOOR = {torch.float64: 1e-6, torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
"""Mean gap in nats that is never a fault: a policy that grows sure of itself rounds ever less, and may turn back."""
CEILING = {torch.float64: 1e-6, torch.float32: 2e-3, torch.float16: 2e-2, torch.bfloat16: 0.1}
"""Largest mean gap whatever was measured; the bound of the first batch, before which nothing was."""
MARGIN, ERRORS = 3.0, 5.0
"""The bound, in means of what was measured, and in standard errors of the mean that is judged."""
DECAY = 0.9
PROBED = 8
"""Rows that are compared where none is of the present weights."""


class Noise:
    """The gap between two computations of the same log-probability, measured while both have the same weights.

    With count n, total s and squares q of all |gaps| so far, each update's faded by `DECAY` at the next:

        bound(N) = max(floor, 3 m + 5 sqrt(v / N)), at most the ceiling,    m = s / n,  v = q / n - m^2

    for the mean of N gaps. Shapes: `sums` [3] in float64, the state that a checkpoint keeps; [P, 3] for the members of
    a population, each of which has a bound of its own. Gaps are in nats.

    >>> noise = Noise()
    >>> noise.bound(100, torch.float32)
    0.002
    >>> noise.observe(torch.tensor([1e-4, 3e-4]))
    >>> round(noise.bound(100, torch.float32), 8)  # 3 * 2e-4 + 5 * 1e-4 / 10
    0.00065
    """

    def __init__(self, *members: int) -> None:
        self.sums = torch.zeros(*members, 3, dtype=torch.float64)

    def bound(self, count: int, dtype: torch.dtype) -> float:
        """Largest mean of `count` gaps that is rounding; `dtype` is the coarser of the two computations'."""
        return _bound(self.sums.tolist(), count, dtype)

    def bounds(self, counts: Sequence[float], dtype: torch.dtype) -> list[float]:
        """The bound of each member, for as many gaps as it has."""
        return [_bound(sums, n, dtype) for sums, n in zip(self.sums.tolist(), counts, strict=True)]

    @staticmethod
    def measured(gaps: Tensor, weights: Tensor | None = None) -> Tensor:
        """[3] or [P, 3] count, sum and sum of squares of |gaps| [N] or [P, N].

        Args:
            weights: 1 for gaps that count, 0 for others.
        """
        gaps = gaps.double()
        if weights is None:
            count = torch.full(gaps.shape[:-1], gaps.shape[-1], dtype=gaps.dtype, device=gaps.device)
            return torch.stack([count, gaps.sum(-1), gaps.square().sum(-1)], -1)
        on = weights.double()
        return torch.stack([on.sum(-1), (gaps * on).sum(-1), (gaps.square() * on).sum(-1)], -1)

    def observe(self, gaps: Tensor, weights: Tensor | None = None) -> None:
        """Measure gaps of samples from weights that are known to be the trained ones; shapes are `measured`'s."""
        self.take(self.measured(gaps, weights))

    def take(self, sums: Tensor) -> None:
        """The same from `measured`."""
        self.sums = DECAY * self.sums + sums


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


def _bound(sums: Sequence[float], count: float, dtype: torch.dtype) -> float:
    n, total, squares = sums
    if not n:
        return CEILING[dtype]
    mean = total / n
    error = (max(0.0, squares / n - mean**2) / max(1.0, count)) ** 0.5
    return float(min(CEILING[dtype], max(FLOOR[dtype], MARGIN * mean + ERRORS * error)))
