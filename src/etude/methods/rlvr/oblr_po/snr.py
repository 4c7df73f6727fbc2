"""A learning rate that follows how much of the gradient is signal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from etude.core.fields import Interval, Probability
from etude.optimizers.adam import TorchAdamW


class SNRAdamW(TorchAdamW):
    """AdamW whose rate is lr * clip(S / Q, floor, 1): the best one step on an L-smooth objective, lr for 1/L.

    E[J(theta + eta g)] >= J + eta |grad J|^2 - L eta^2 / 2 (|grad J|^2 + Var g) is largest at
    eta = 1/L |grad J|^2 / (|grad J|^2 + Var g) = 1/L SNR / (1 + SNR) (OBLR-PO, arXiv:2511.23310). With the gradients
    g_A, g_B of two halves of a minibatch, a and 1 - a their shares of its rows, <g_A, g_B> and
    |a g_A + (1 - a) g_B|^2 estimate numerator and denominator without bias; S and Q are their moving averages. A
    minibatch of a single group has no halves, and takes the whole rate.

    On `language` the halves are whole groups, draws of their own from the problems. On `enumerable` each has half of
    every group: tables of different prompts have no parameter in common, so whole groups could not agree. There a
    baseline from all n rows of a group joins the halves: <g_A, g_B> is too large by |grad J|^2 / (n - 1)^2 for the mean
    of the others. A minibatch in which no group has two rows takes the whole rate.

    The lemma is about plain gradient steps. AdamW divides the gradient's scale away, in signal and noise alike, so
    here the ratio says which share of the usual step is worth taking; the moments see every gradient unscaled.

    Args:
        memory: of S and Q; 0 trusts the last minibatch alone.
        floor: smallest share of lr.

    Shapes: gradients as the parameters, [...] each; one factor for all.

    Halves with the gradients 3 and 1 have the signal 3 and the power ((3 + 1) / 2)^2:

    >>> SNRAdamW(memory=0.0).bind().pace([torch.tensor([3.0])], [torch.tensor([1.0])])
    0.75
    """

    halves: ClassVar[bool] = True
    memory: Annotated[float, Interval(ge=0, lt=1)] = 0.9
    floor: Probability = 0.05

    def initial_state(self) -> dict[str, Any]:
        return {"signal": 0.0, "power": 0.0}

    def pace(self, first: Sequence[Tensor], second: Sequence[Tensor], share: float = 0.5) -> float:
        rest, signal = 1 - share, sum(_dot(a, b) for a, b in zip(first, second, strict=True))
        power = share**2 * _square(first) + 2 * share * rest * signal + rest**2 * _square(second)
        if not (torch.tensor([signal, power]).isfinite().all()):
            return 1.0  # the loop refuses such a gradient itself
        for name, now in (("signal", signal), ("power", power)):  # both start at 0, which their ratio does not see
            self.state[name] = self.memory * self.state[name] + (1 - self.memory) * now
        ratio = self.state["signal"] / self.state["power"] if self.state["power"] > 0 else 0.0
        return min(1.0, max(self.floor, ratio))


def _square(tensors: Iterable[Tensor]) -> float:
    return sum(_dot(x, x) for x in tensors)


def _dot(a: Tensor, b: Tensor) -> float:
    return float(torch.dot(a.flatten(), b.flatten()))
