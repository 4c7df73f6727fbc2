"""Credit by how long turns took."""

from __future__ import annotations

import torch
from torch import Tensor

from etude.advantages.turns import TurnFactors, Turns
from etude.core.batches import TokenBatch
from etude.core.errors import InvariantError
from etude.core.meters import durations


class DurationFactors(TurnFactors):
    """dt / mean dt of each turn, whose answer took dt seconds, simulated ones if any were said (arXiv:2509.01684).

    Where many actors work at once, an action is finished as much more often as it is faster than others, so that its
    gradients would count that much more; with this factor they count alike. Under `TurnWeights(centred=False)` it
    multiplies a clipped surrogate, whose clip knows no scale of A. Where no turn takes any time, factors are 1.

    Shapes: durations [N] -> factors [N], bonuses 0 [N].

    >>> from etude.core.episodes import Episode, Segment
    >>> from etude.core.rows import to_batch
    >>> turn = lambda dt: Segment("assistant", "", [6], [1], [0.0], duration=dt)
    >>> batch = to_batch([Episode(None, [Segment("user", "", [5], [0], [0.0]), turn(3.0), turn(1.0)])], 0, 1.0, "cpu")
    >>> [x.tolist() for x in DurationFactors()(batch, Turns.in_batch(batch))]
    [[1.5, 0.5], [0.0, 0.0]]
    """

    def __call__(self, batch: TokenBatch, turns: Turns) -> tuple[Tensor, Tensor]:
        sampled = [e for e, own in zip(batch.episodes, batch.sampled.tolist()) if own]
        taken = batch.scores.new_tensor([dt for row in durations(sampled) for dt in row])
        if len(taken) != len(turns.sizes):
            raise InvariantError(f"{len(taken)} durations are known of {len(turns.sizes)} turns.")
        mean = taken.mean()
        factors = taken / mean if float(mean) > 0 else torch.ones_like(taken)
        return factors, torch.zeros_like(taken)
