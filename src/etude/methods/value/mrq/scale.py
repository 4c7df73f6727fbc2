"""Values in units of the mean reward, whatever the environment pays in."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from etude.core.critic_slots import QHead
from etude.core.replay_slots import ReplayReading
from etude.learners.backups import Bootstrap

LEAST = 1e-8
"""Of a scale, where nothing was paid yet."""


class ScaledBootstrap(Bootstrap):
    """y = (r + discount c' Q') / c, so that values, errors and gradients do not depend on the size of rewards.

    c is the mean |r| of all that is stored as the slow copies last moved, c' that of the time before, in whose units
    they learned; 1 until then.

    Shapes: [P, M, N, K] -> [P, N, K].

    >>> from types import SimpleNamespace as Rows
    >>> from etude.core.critic_slots import Following, Rule
    >>> from etude.learners.heads import Scalar
    >>> class Paid(Rule):
    ...     def __call__(self, read): return Following(torch.tensor([[[[3.0]]]]))
    >>> read = Rows(batch=Rows(rewards=torch.tensor([[1.0]]), discounts=torch.tensor([[0.5]])))
    >>> part, targets = ScaledBootstrap(Paid()).bind(), []
    >>> for rewards in (2.0, 8.0):  # c is 2, then 8
    ...     part.followed(Rows(rewards=torch.full((1, 5), rewards)))
    ...     targets.append(part.target(read, Scalar()).item())
    >>> targets
    [1.25, 0.5]
    """

    def target(self, read: ReplayReading, head: QHead) -> Tensor:
        batch = read.batch
        now, before = (self._unit(name, batch.rewards) for name in ("now", "before"))
        assert batch.discounts is not None
        return head.target(batch.rewards / now, batch.discounts * before / now, self.following(read))

    def counts(self, largest: Tensor, read: ReplayReading) -> Tensor:
        now, found = self._unit("now", largest), super().counts(largest, read)
        return found if isinstance(now, float) else found / now[:, 0]

    def _unit(self, name: str, like: Tensor) -> Tensor | float:
        """[P, 1] where `like` is; 1 until something was stored."""
        found: Tensor | None = self.state.get(name)
        return 1.0 if found is None else found.to(like.device)

    def followed(self, store: Any) -> None:
        scales = torch.stack([own.double().abs().mean() for own in store.rewards]).clamp(min=LEAST)
        self.state["before"] = self.state.get("now", torch.ones_like(scales[:, None], dtype=store.rewards.dtype))
        self.state["now"] = scales[:, None].to(store.rewards.dtype)
