"""Activations that give a number the same value wherever it stands in a tensor, and are fast on this processor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from etude.core import kernels

Activation = Literal["tanh", "relu", "silu", "elu", "leaky-relu"]


class _Tanh(torch.autograd.Function):
    """NumPy's tanh, written over its argument; what it saves is its output, so it can be differentiated twice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        _numpy_tanh_(x.detach())
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _slope(gradient, *ctx.saved_tensors)  # type: ignore[no-any-return]


_slope = torch.ops.aten.tanh_backward.default


def _numpy_tanh_(x: Tensor) -> Tensor:
    numbers = x.numpy()
    np.tanh(numbers, numbers)
    return x


def tanh_(x: Tensor) -> Tensor:
    """tanh, written over x, by whichever of torch and NumPy is fast on this processor (`core/kernels.py`)."""
    if not kernels.numpy_tanh() or x.dtype != torch.float32 or not x.is_cpu or torch.compiler.is_exporting():
        return torch.tanh_(x)
    return _Tanh.apply(x) if x.requires_grad else _numpy_tanh_(x)  # type: ignore[no-untyped-call]


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)), by tanh: torch's own kernel gives the last entries of a tensor other last bits."""
    return 0.5 + 0.5 * torch.tanh(0.5 * x)


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)) = (x + |x|) / 2 + log(1 + exp(-|x|)); its own formula for the same reason as `sigmoid`."""
    size = x.abs()
    return 0.5 * (x + size) + (-size).exp().log1p()


def silu(x: Tensor) -> Tensor:
    """x sigmoid(x) (arXiv:1702.03118)."""
    return x * sigmoid(x)


class _Elu(torch.autograd.Function):
    """Its gradient from its value alone, g (1 + min(y, 0)): a third of what torch takes for the parts of the sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = _elu(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        slope: Tensor = y.clamp(max=0)
        return slope.add_(1).mul_(gradients[0])


def _elu(x: Tensor) -> Tensor:
    return torch.relu(x) + x.clamp(max=0).expm1()


def elu(x: Tensor) -> Tensor:
    """x above 0, exp(x) - 1 below (arXiv:1511.07289)."""
    found: Tensor = _Elu.apply(x) if x.requires_grad else _elu(x)  # type: ignore[no-untyped-call]
    return found


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": tanh_, "relu": torch.relu_, "silu": silu, "elu": elu, "leaky-relu": nn.functional.leaky_relu_
}  # fmt: skip
"""Some write over their argument, which in a network is a layer's output that nobody else reads."""
