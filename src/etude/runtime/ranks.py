"""Ranks: processes that take the same step together, each on its own part of the rows.

What every rank has a part of is added up over all of them before anybody goes on, so that all go on from the same
numbers. A rank calls the same things in the same order as the others; each call waits for all.

>>> ALONE.told({"rows": 3})
[{'rows': 3}]
"""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.core import errors
from etude.core.cut import cut
from etude.core.errors import ConfigError, EtudeError, WorkerError

if TYPE_CHECKING:
    from torch import Tensor

    from etude.core.batches import TokenBatch

PATIENCE = 3600.0
"""Seconds that a rank waits for the others before it takes one of them for dead."""
JOINING = 120.0
"""Seconds that all of them have to find each other."""
MEMORY = "OutOfMemoryError"
INTERFACE = "GLOO_SOCKET_IFNAME"
GLOO = "gloo"
"""In every message of gloo's about a connection, as a part of the path of its source."""


class LostRank(WorkerError):
    """A rank ended, or did not answer: the step is over, and nobody knows how far it came."""

    intact = False


class Ranks:
    """One rank among `count`; as it is here, the only one, which waits for nobody.

    Those of several implement `sum`, `told` and `joined`.
    """

    rank, count = 0, 1
    lockstep = False
    """Whether each pass through the model is one of all ranks, since each holds a part of its weights."""

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Make each tensor the sum over all ranks, in place; they give the same shapes and dtypes."""

    def told(self, value: Any) -> list[Any]:
        """What every rank gives here, JSON values, in the order of ranks."""
        return [value]

    def joined(self, rows: Tensor, length: int) -> Tensor:
        """The tensor [length, ...] of which each rank has its share of rows (`shards.share`)."""
        return rows

    def close(self) -> None:
        """Leave the others, who are told so where they wait."""

    # What is made of these two

    def cut(self, batch: TokenBatch, whole_groups: bool) -> list[Tensor]:
        """Row indices of each rank."""
        return cut(batch, self.count, whole_groups)

    def mine(self, batch: TokenBatch, rows: Tensor, whole_groups: bool = False) -> Tensor:
        """Those of some rows of a batch that are this rank's; all, where it is the only one."""
        return rows if self.count == 1 else rows[self.cut(batch.rows(rows), whole_groups)[self.rank]]

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """All ranks come to the end of this, or all fail: what one raises of etude's own reaches the others too.

        In lockstep the others are in the middle of a pass and cannot be told: then the run is over.
        """
        import torch

        if self.count == 1:
            yield
            return
        if self.lockstep:
            with _together():
                yield
            return
        failed: Exception | None = None
        try:
            yield
        except (EtudeError, torch.OutOfMemoryError) as error:
            failed = error
        told = self.told(None if failed is None else [type(failed).__name__, str(failed)])
        if failed is not None:
            raise failed
        for name, text in filter(None, told):
            raise torch.OutOfMemoryError(text) if name == MEMORY else getattr(errors, name, EtudeError)(text)


ALONE = Ranks()
"""Of a process that learns by itself."""


class Gloo(Ranks):
    """A rank among processes of this machine that speak by torch's gloo, over the loopback interface.

    Args:
        meeting: a file that is not there yet, by which they find each other.
        lockstep: whether the weights are divided among them.

    Raises: LostRank if they do not; ConfigError where this process is a rank of something else already.
    """

    def __init__(
        self, meeting: Path, rank: int, count: int, patience: float = PATIENCE, lockstep: bool = False
    ) -> None:  # fmt: skip
        import torch.distributed as dist

        if dist.is_initialized():
            raise ConfigError("This process is a rank of torch.distributed already: run without --ranks there.")
        self.rank, self.count, self.lockstep = rank, count, lockstep
        store = dist.FileStore(str(meeting), count)  # type: ignore[attr-defined]  # it is exported
        store.set_timeout(timedelta(seconds=JOINING))
        _spare_children()
        hook = sys.excepthook
        with _loopback(), _lost():
            dist.init_process_group(
                "gloo", store=store, rank=rank, world_size=count, timeout=timedelta(seconds=patience)
            )
        sys.excepthook = hook  # torch puts the rank before each line of an error, for as long as the process lives

    def sum(self, tensors: Sequence[Tensor]) -> None:
        import torch
        import torch.distributed as dist

        for dtype in dict.fromkeys(t.dtype for t in tensors):
            own = [t for t in tensors if t.dtype == dtype]
            flat = torch.cat([t.detach().reshape(-1).cpu() for t in own])
            with _lost():
                dist.all_reduce(flat)
            for tensor, total in zip(own, flat.split([t.numel() for t in own]), strict=True):
                tensor.detach().copy_(total.view(tensor.shape))

    def told(self, value: Any) -> list[Any]:
        import torch
        import torch.distributed as dist

        said = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.long) for _ in range(self.count)]
        with _lost():
            dist.all_gather(sizes, torch.tensor([len(said)]))
            longest = max(int(size) for size in sizes)
            heard = [torch.zeros(longest, dtype=torch.uint8) for _ in sizes]
            dist.all_gather(heard, torch.nn.functional.pad(said, (0, longest - len(said))))
        return [json.loads(bytes(text[: int(size)].tolist())) for text, size in zip(heard, sizes, strict=True)]

    def joined(self, rows: Tensor, length: int) -> Tensor:
        import torch
        import torch.distributed as dist

        own = rows.detach().cpu()
        padded = own.new_zeros(-(-length // self.count), *own.shape[1:])
        padded[: len(own)] = own
        parts = [torch.empty_like(padded) for _ in range(self.count)]
        with _lost():
            dist.all_gather(parts, padded)
        return torch.cat(parts)[:length].to(rows.device)

    def close(self) -> None:
        import torch.distributed as dist

        with suppress(RuntimeError):
            if dist.is_initialized():
                dist.destroy_process_group()


@cache
def _spare_children() -> None:
    """Have forked children collect nothing that was there before: a group of gloo's that ends joins its threads, which
    no child has, and FSDP2 keeps groups in cycles."""
    os.register_at_fork(after_in_child=gc.freeze)


@contextmanager
def _lost() -> Iterator[None]:
    """What gloo says of a rank that is gone, as a sentence."""
    try:
        yield
    except RuntimeError as error:
        told = str(error).strip().splitlines()
        raise LostRank(f"A rank ended, or did not answer ({told[0] if told else error!r}).") from None


@contextmanager
def _together() -> Iterator[None]:
    """What fails in a pass of all ranks, as a sentence of etude's own."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        raise EtudeError(
            f"Out of memory in a pass of all ranks ({error}), which cannot be tried again while the others wait in it: "
            "set a smaller --micro-tokens, or --gradient-checkpointing."
        ) from None
    except RuntimeError as error:
        if GLOO not in str(error):
            raise
        raise LostRank(f"A rank ended, or did not answer ({str(error).strip().splitlines()[0]}).") from None


@contextmanager
def _loopback() -> Iterator[None]:
    """Have gloo listen on the loopback interface only, unless somebody has said where."""
    names = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    if INTERFACE in os.environ or not names:
        yield
        return
    os.environ[INTERFACE] = names[0]
    try:
        yield
    finally:
        del os.environ[INTERFACE]
