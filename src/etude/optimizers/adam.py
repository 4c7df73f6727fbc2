"""How the step is taken."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import torch

from etude.core.fields import Fraction, NonNegative, Positive, Probability
from etude.core.slots import Optimizer


class AdamW(Optimizer):
    """AdamW (arXiv:1711.05101) with a learning-rate schedule and gradient-norm clipping.

    Args:
        lr: largest learning rate.
        warmup: fraction of all steps over which the rate rises linearly from 0.
        schedule: what follows: 'constant', 'linear' or 'cosine' down to 0.
        clip_norm: largest global gradient norm; None for no limit.
    """

    lr: Positive = 1e-3
    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    epsilon: Positive = 1e-8
    weight_decay: NonNegative = 0.0
    warmup: Probability = 0.0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    clip_norm: Positive | None = 1.0

    def build(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            parameters, self.lr, (self.beta1, self.beta2), self.epsilon, self.weight_decay, foreach=True
        )

    def rate(self, step: int, steps: int) -> float:
        rising = self.warmup * steps
        if step < rising:
            return (step + 1) / (rising + 1)
        left = max(0.0, 1 - (step - rising) / max(1.0, steps - rising))
        return {"constant": 1.0, "linear": left, "cosine": 0.5 * (1 + math.cos(math.pi * (1 - left)))}[self.schedule]

    def clip(self) -> float | None:
        return self.clip_norm
