"""Counts what makes a program wait for its device: numbers and places that are asked of it, and what is sent to it.

A kernel is only put into a queue; the program waits for it where it looks at a number (`item`, `tolist`, `bool`), where
a result's shape depends on numbers (`nonzero`, a mask as an index, `unique`), and where something is copied. Which
tensors are the host's is known from `TwoDevices`, under which a run on a CPU behaves as one with a device.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from two_devices import MAKING, TwoDevices, on_host, tensors_in

ASKING = {
    "_local_scalar_dense", "item", "is_nonzero", "equal", "allclose", "nonzero", "nonzero_numpy", "argwhere",
    "masked_select", "masked_scatter_backward", "_unique2", "_unique", "unique_dim", "unique_consecutive", "bincount",
    "histc",
}  # fmt: skip
"""Operations after which the host knows a number or a shape that only the device knew; CUDA's `bincount` looks, too."""
REPEATING = (torch.ops.aten.repeat_interleave.Tensor, torch.ops.aten.repeat_interleave.self_Tensor)
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}


class Waits(TwoDevices):
    """`down`: what was asked of the device, `up`: what was sent there, each with the line of etude that did it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.calls = 0
        self.below = _Operations(self)

    def __enter__(self) -> Waits:
        super().__enter__()
        self.below.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.below.__exit__(*error)
        super().__exit__(*error)

    def clear(self) -> None:
        """Begin anew."""
        self.asked.clear()
        self.sent.clear()
        self.calls = 0

    @property
    def total(self) -> tuple[int, int]:
        """How often it was asked, and sent something."""
        return self.asked.total(), self.sent.total()

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        there = bool(args) and isinstance(args[0], Tensor) and not on_host(args[0])
        if name in ("tolist", "cpu", "numpy") and there:
            self.asked[f"{name} {_where()}"] += 1
        if func in MAKING and kwargs.get("device") is not None and func in (torch.tensor, torch.as_tensor):
            self.sent[f"{name} {_where()}"] += not (isinstance(args[0], Tensor) and not on_host(args[0]))
        free = kwargs.get("non_blocking")
        if (
            name == "to"
            and not there
            and not free
            and any(isinstance(x, torch.device) for x in (*args[1:], kwargs.get("device")))
        ):
            self.sent[f"{name} {_where()}"] += 1
        if name == "copy_" and there and on_host(args[1]) and not free:
            self.sent[f"{name} {_where()}"] += 1
        return super().__torch_function__(func, types, args, kwargs)


class _Operations(TorchDispatchMode):
    """What reaches torch's dispatcher, from Python or from inside of another operation."""

    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self.waits = waits

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func._overloadpacket.__name__, kwargs or {}
        self.waits.calls += 1
        asks = name in ASKING or (func in REPEATING and kwargs.get("output_size") is None)
        if name in INDEXING:
            asks = any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1])
        if asks and not any(on_host(x) for x in tensors_in(args)):
            self.waits.asked[f"{name} {_where()}"] += 1
        return func(*args, **kwargs)


def _where() -> str:
    """The innermost line of etude that is being run."""
    frame: Any = sys._getframe(1)
    while frame is not None and "/src/etude/" not in frame.f_code.co_filename:
        frame = frame.f_back
    if frame is None:
        return "outside"
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
