"""float32 masters of weights that are held in fewer bits, so that no step is lost to rounding.

A step of 1e-6 is far below the rounding of a bfloat16 weight of 0.02 (6e-5): added to the weight itself it vanishes.
Added to a float32 master it counts, and the weight is the master, rounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from etude.policies.fingerprint import fingerprint

LOW = (torch.bfloat16, torch.float16)


class Masters:
    """What the optimizer steps on: each weight itself, or its float32 master where it is held in 16 bits.

    Gradients go to the masters as they arise: micro-batches are summed in float32, and `weight.grad` stays None.

    Args:
        named: weights by name; `parameters` has the same names and order.
    """

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]]) -> None:
        self.weights = dict(named)
        self.parameters = {k: _master(w) if w.dtype in LOW else w for k, w in self.weights.items()}

    @torch.no_grad()
    def publish(self) -> None:
        """Round the masters into the weights."""
        for weight, master in zip(self.weights.values(), self.parameters.values(), strict=True):
            if weight is not master:
                weight.copy_(master)

    @property
    def exact(self) -> bool:
        """Whether the weights are the masters to the last bit."""
        return all(self.parameters[name] is weight for name, weight in self.weights.items())

    def whole(self) -> Mapping[str, Tensor]:
        """All that is trained, by name, as exactly as this process knows it."""
        return self.parameters

    def mark(self) -> tuple[float, ...]:
        """The fingerprint of the masters."""
        return fingerprint(self.parameters.values())

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take other numbers, by name."""
        for name, mine in self.parameters.items():
            mine.copy_(tensors[name])
        self.publish()

    @property
    def extra_bytes(self) -> int:
        """Memory that the masters take beside the weights."""
        pairs = zip(self.weights.values(), self.parameters.values(), strict=True)
        return sum(m.nbytes for w, m in pairs if m is not w)


def _master(weight: nn.Parameter) -> nn.Parameter:
    master = nn.Parameter(weight.detach().float(), requires_grad=weight.requires_grad)
    if weight.requires_grad:
        weight.register_post_accumulate_grad_hook(lambda w: _hand_over(w, master))
    return master


@torch.no_grad()
def _hand_over(weight: Tensor, master: nn.Parameter) -> None:
    assert weight.grad is not None
    master.grad = weight.grad.float() if master.grad is None else master.grad.add_(weight.grad)
    weight.grad = None
