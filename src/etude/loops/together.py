"""What an update adds up over ranks before its step: gradients, what it reports, what was looked at on the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from etude.core.errors import InvariantError
from etude.loops.tally import Tally, numbers
from etude.runtime.ranks import Ranks
from etude.runtime.shards import Shard


def add_gradients(ranks: Ranks, parameters: Sequence[Any]) -> None:
    """Make every gradient the sum over ranks; where no rank has one there is none. Those of shards are so already."""
    parameters = [p for p in parameters if not isinstance(p, Shard)]
    if ranks.count == 1 or not parameters:
        return
    there = torch.tensor([p.grad is not None for p in parameters], dtype=torch.long)
    ranks.sum([there])
    moving = [p for p, any_has in zip(parameters, there.tolist(), strict=True) if any_has]
    for parameter in moving:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    ranks.sum([p.grad for p in moving])


def check_alike(ranks: Ranks, mark: Sequence[float], step: int) -> None:
    """Raise InvariantError unless all ranks have the same weights."""
    if len({tuple(told) for told in ranks.told([*mark])}) > 1:
        raise InvariantError(
            f"After the update of step {step} the ranks hold different weights, so their gradients would no longer be "
            "those of one policy. Nothing is saved of this step; resume from the last checkpoint."
        )


def tallied(ranks: Ranks, own: Tally) -> Tally:
    """What the tallies of all ranks come to."""
    if ranks.count == 1:
        return own
    found = numbers([*own.sums.values(), *own.counts.values()])
    rows = dict(zip(own.sums, zip(found[: len(own.sums)], found[len(own.sums) :])))
    whole = Tally()
    for told in ranks.told(rows):
        for name, (total, count) in told.items():
            whole.add(name, total, count)
    return whole


def listed(ranks: Ranks, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Small tensors of all ranks, in the order of ranks."""
    if ranks.count == 1:
        return [*tensors]
    told = ranks.told([x.detach().double().cpu().tolist() for x in tensors])
    return [torch.tensor(value, dtype=torch.float64) for own in told for value in own]


def spread(ranks: Ranks, values: Tensor, rows: Tensor) -> None:
    """Put what each rank has at its own rows [N] of `values` [B] into those of all, in place."""
    if ranks.count == 1:
        return
    known, own = torch.zeros_like(values), torch.zeros_like(values)
    known[rows], own[rows] = 1.0, values[rows]
    ranks.sum([known, own])
    values.copy_(torch.where(known > 0, own, values))


def from_first(ranks: Ranks, make: Callable[[], list[Tensor]], like: Tensor) -> list[Tensor]:
    """Tensors that the first rank makes, on all of them; `like` says where they lie."""
    if ranks.count == 1:
        return make()
    made = make() if ranks.rank == 0 else []
    shapes = ranks.told([[list(x.shape), str(x.dtype).removeprefix("torch.")] for x in made])[0]
    if ranks.rank:
        made = [torch.zeros(shape, dtype=getattr(torch, name), device=like.device) for shape, name in shapes]
    ranks.sum(made)
    return made


def whole(ranks: Ranks, own: dict[str, Tensor], shape: Sequence[int], device: torch.device) -> dict[str, Tensor]:
    """Tensors [B, T, ...] by name of which each rank has its own rows, 0 elsewhere; one without rows may have none.

    Args:
        shape: B and T.
    """
    if ranks.count == 1:
        return own
    told = ranks.told({k: [list(v.shape[2:]), str(v.dtype).removeprefix("torch.")] for k, v in own.items()})
    specs = {name: spec for there in told for name, spec in there.items()}
    for name, (rest, dtype) in specs.items():
        if name not in own:
            own[name] = torch.zeros(*shape, *rest, dtype=getattr(torch, dtype), device=device)
    found = {name: own[name] for name in specs}
    ranks.sum([*found.values()])
    return found
