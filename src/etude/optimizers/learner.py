"""Small networks that a part trains on its own: weights and moments are tensors, so its state holds all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


def learner(weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """A network that has taken no step yet, to be kept in a part's state: `weights`, Adam's moments, `updates`."""
    held = {k: w.detach().clone() for k, w in weights.items()}
    first, second = ({k: torch.zeros_like(w) for k, w in held.items()} for _ in range(2))
    return {"weights": held, "first": first, "second": second, "updates": 0}


def descend(state: dict[str, Any], loss: Callable[[dict[str, Tensor]], Tensor], lr: float) -> None:
    """One step of Adam on `loss(weights)`, a number. Where the gradient has been exactly 0, nothing moves."""
    with torch.enable_grad():
        weights = {k: w.clone().requires_grad_() for k, w in state["weights"].items()}
        gradients = torch.autograd.grad(loss(weights), list(weights.values()))
    state["updates"] += 1
    first_scale, second_scale = 1 - BETA1 ** state["updates"], 1 - BETA2 ** state["updates"]
    for name, gradient in zip(weights, gradients):
        first = state["first"][name] = torch.lerp(gradient, state["first"][name], BETA1)
        second = state["second"][name] = torch.lerp(gradient * gradient, state["second"][name], BETA2)
        step = first / first_scale / ((second / second_scale).sqrt() + EPSILON)
        state["weights"][name] = state["weights"][name] - lr * step
