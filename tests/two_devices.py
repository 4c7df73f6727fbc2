"""A second device for machines without one: every tensor is marked as the host's or the device's, as if it lay there.

What is made without a device, or from numpy, is the host's; so is what comes from such tensors alone. `.to(device)` and
`copy_` bring numbers to the device, `.cpu()` back. To compute with both at once, or to look at a device's tensor as
numpy, fails as it would with a GPU. Numbers are the CPU's, so a run under it equals one without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

MAKING = {
    torch.tensor, torch.as_tensor, torch.zeros, torch.ones, torch.full, torch.empty, torch.arange, torch.eye,
    torch.rand, torch.randn, torch.randint, torch.randperm, torch.linspace,
}  # fmt: skip
FREE = {"__get__", "size", "dim", "numel", "item", "tolist", "__len__", "__bool__", "__int__", "__float__", "stride"}
"""What asks for a number or a shape, wherever it is."""


def mark(tensor: Tensor, host: bool = True) -> Tensor:
    """Say where a tensor is."""
    tensor.on_host = host  # type: ignore[attr-defined]
    return tensor


def on_host(tensor: Tensor) -> bool:
    return getattr(tensor, "on_host", False)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor among arguments or results."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from tensors_in(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors_in(each)


class TwoDevices(TorchFunctionMode):
    """Counts what goes `up` by `copy_` and `down` by `.cpu()`, one call each."""

    def __init__(self) -> None:
        super().__init__()
        self.up = self.down = 0
        self.from_numpy = torch.from_numpy

    def __enter__(self) -> TwoDevices:
        torch.from_numpy = lambda array: mark(self.from_numpy(array))  # is not told to modes
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch.from_numpy = self.from_numpy

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if func in MAKING and not (func is torch.as_tensor and isinstance(args[0], Tensor)):
            return mark(func(*args, **kwargs), kwargs.get("device") is None)
        if name == "numpy":
            assert on_host(args[0]), "numpy of a tensor that is on the device"
        if name == "cpu":
            self.down += not on_host(args[0])
            return mark(func(*args, **kwargs).view_as(args[0]))
        if name == "to" and any(isinstance(x, (torch.device, Tensor)) for x in (*args[1:], kwargs.get("device"))):
            elsewhere = next((x for x in args[1:] if isinstance(x, Tensor)), None)
            return mark(func(*args, **kwargs).view_as(args[0]), elsewhere is not None and on_host(elsewhere))
        if name == "copy_":
            self.up += on_host(args[1]) and not on_host(args[0])
            return func(*args, **kwargs)
        given = [*tensors_in(args), *tensors_in(kwargs)]
        if name in ("__getitem__", "__setitem__"):  # host's indices serve any tensor
            given = [args[0], *(args[2:] if name == "__setitem__" and isinstance(args[2], Tensor) else ())]
            if on_host(args[0]):
                given += tensors_in(args[1])
        if name not in FREE:
            sides = {on_host(x) for x in given if x.dim()}
            assert len(sides) < 2, f"{name} of tensors on both devices: {[(on_host(x), tuple(x.shape)) for x in given]}"
        found, here = func(*args, **kwargs), bool(given) and all(map(on_host, given))
        for each in tensors_in(found):
            if not any(each is x for x in given):
                mark(each, here)
        return found
