"""What is seen of stored rows, and what an encoder makes of it: each computed once, until a learner stepped."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor

from etude.core.encoder_slots import Encoding, ReplayEncoder
from etude.core.replay_slots import At
from etude.core.transitions import Transitions

if TYPE_CHECKING:
    from etude.loops.replay_update import ReplayUpdater


class Known(NamedTuple):
    """Something computed: its value, whether with gradient, and whose weights it rests on."""

    value: Any
    grad: bool
    rests_on: frozenset[str]


class StoredFeatures:
    """What policy and critics read of rows, and what was computed from them so far.

    Args:
        batch: the rows. updater: whose networks read them.
    """

    def __init__(self, updater: ReplayUpdater, batch: Transitions) -> None:
        self.updater, self.batch = updater, batch
        self.known: dict[Any, Known] = {}

    def look(self, shown: Tensor) -> Tensor:
        seen: Tensor = self.updater.actor.look(shown)
        return seen

    def forget(self, name: str) -> None:
        """Forget what rests on the weights of this learner, or of its slow copy."""
        self.known = {k: v for k, v in self.known.items() if name not in v.rests_on}

    def _once(self, key: Any, rests_on: tuple[str, ...], compute: Callable[[], Any]) -> Any:
        grad = torch.is_grad_enabled()
        found = self.known.get(key)
        if found is None or (grad and not found.grad):
            found = self.known[key] = Known(compute(), grad, frozenset(rests_on))
        return found.value

    def seen(self, at: At) -> Tensor:
        shown = self.batch.observations if at == "here" else self.batch.next_observations
        assert shown is not None

        def looked() -> Tensor:
            if self.batch.rewards.dim() == 2:
                return self.look(shown)
            windows: Tensor = self.look(shown.flatten(1, 2)).unflatten(1, shown.shape[1:3])
            return windows

        seen: Tensor = self._once(("seen", at), (), looked)
        return seen

    def features(self, at: At, copy: bool, learns: bool = False) -> Tensor:
        """What policy and critic read, or what their slow copies do: what is seen, or what an encoder makes of it.

        Args:
            learns: whether the critic reads that learns from it, so that an encoder may have its gradient.
        """
        encoder = self.updater.encoder
        if encoder is None:
            return self.seen(at)
        slow, module = copy and self.updater.slow(encoder), self._encoding(copy, learns)

        def made() -> Tensor:
            self.updater.passes["encoder"] += 1
            return module(self.seen(at))

        with torch.set_grad_enabled(self._reaches(learns)):
            found: Tensor = self._once(("features", at, slow), ("targets" if slow else encoder,), made)
        return found if self._reaches(learns) else found.detach()

    def _reaches(self, learns: bool) -> bool:
        """Whether the gradient of who reads features goes on to the encoder."""
        part = self.updater.parts[self.updater.encoder or "critic"]
        return learns and torch.is_grad_enabled() and isinstance(part, ReplayEncoder) and part.by_critic

    def _encoding(self, copy: bool, learns: bool) -> Encoding:
        """The encoder's network, without gradient to it unless it learns so."""
        name = self.updater.encoder
        assert name is not None
        slow = copy and self.updater.slow(name)
        return cast(Encoding, self.updater.module(name, slow, frozen=not self._reaches(learns)))

    def _rests_on(self, name: str, slow: bool) -> tuple[str, ...]:
        """Whose weights there are in what this learner says, or its slow copy."""
        encoder = self.updater.encoder
        whose = [(name, slow)] if encoder is None else [(name, slow), (encoder, slow and self.updater.slow(encoder))]
        return tuple("targets" if copied else learner for learner, copied in whose)
