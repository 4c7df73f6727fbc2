"""Counts the arithmetic of matrix products while they run, in either library."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


class Operations(TorchDispatchMode):
    """Floating-point operations of the products inside; torch's own `FlopCounterMode` fails under `autograd.grad`."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kind, kwargs = func._overloadpacket, kwargs or {}
        if kind.__name__ in OTHERS:
            self.total += OTHERS[kind.__name__](*args, **kwargs)
        elif kind not in flop_registry:
            with self:  # in inference mode a linear layer comes here whole
                out = func.decompose(*args, **kwargs)
            return func(*args, **kwargs) if out is NotImplemented else out
        out = func(*args, **kwargs)
        if kind in flop_registry:
            self.total += flop_registry[kind](*args, **kwargs, out_val=out)
        return out


def attention(q: Any, k: Any, v: Any, dropout: float = 0.0, causal: bool = False, **options: Any) -> float:
    """Two products; of a causal one the half that is needed."""
    rows, heads, queries, width = q.shape
    return 2 * rows * heads * queries * k.shape[2] * (width + v.shape[3]) * (0.5 if causal else 1.0)


def attention_backward(
    d_out: Any, q: Any, k: Any, v: Any, out: Any, normaliser: Any, dropout: float, causal: bool, **options: Any
) -> float:
    """Five products, the scores computed again among them."""
    return 2.5 * attention(q, k, v, dropout, causal)


def linear(x: Any, weight: Any, *others: Any, **options: Any) -> float:
    """One product."""
    return 2.0 * x.numel() * weight.shape[0]


OTHERS = {
    "_scaled_dot_product_flash_attention_for_cpu": attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": attention_backward,
    "mkldnn_linear": linear, "_linear_pointwise": linear,
}  # fmt: skip
"""What torch's table does not have."""
