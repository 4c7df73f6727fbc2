"""What formulas ask about stored rows: each thing is computed once, until a learner stepped that it rests on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Generator, Tensor, nn

from etude.core.replay_slots import At, Choice, Drawing
from etude.core.transitions import Transitions
from etude.policies.control.noise import noisy
from etude.policies.control.units import in_units

if TYPE_CHECKING:
    from etude.loops.replay_update import ReplayUpdater


class Known(NamedTuple):
    """Something computed: its value, whether with gradient, and whose weights it rests on."""

    value: Any
    grad: bool
    rests_on: frozenset[str]


class StoredReading:
    """Rows as the learners of an update read them: `core.replay_slots.ReplayReading`.

    Args:
        draw: the random numbers of this update.
    """

    def __init__(self, updater: ReplayUpdater, batch: Transitions, draw: Drawing) -> None:
        self.updater, self.batch, self.draw = updater, batch, draw
        self.reader, self.errors = "", cast("Tensor | None", None)
        self.known: dict[Any, Known] = {}

    @property
    def wants_errors(self) -> bool:
        return self.updater.method.sampling.reads_errors

    def tell(self, errors: Tensor) -> None:
        self.errors = errors

    @property
    def network(self) -> nn.Module:
        return self.updater.trainers[self.reader].network

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
        """What networks see of the observations."""
        batch = self.batch
        shown = batch.observations if at == "here" else batch.next_observations
        assert shown is not None
        seen: Tensor = self._once(("seen", at), (), lambda: self.updater.actor.see(shown))
        return seen

    def policy(self, at: At = "here", copy: bool = False) -> Choice:
        slow = copy and self.updater.slow("policy")
        whose = "targets" if slow else "policy"

        def chosen() -> Choice:
            actor, spread = self.updater.module("policy", slow), in_units(self.updater.actor)
            said = actor(self.seen(at))
            count = said.shape[1]

            def noise(generator: Generator, times: int) -> Tensor:
                return spread.noise((times, count), generator)

            self.updater.passes["policy"] += 1
            return spread.chosen(said, self.draw(f"policy {at}", noise))

        choice: Choice = self._once(("policy", at, slow), (whose,), chosen)
        return choice

    def outputs(
        self, at: At = "here", actions: Tensor | None = None, copy: bool = False, frozen: bool = False,
        first: bool = False,
    ) -> Tensor:  # fmt: skip
        slow = copy and self.updater.slow("critic")
        network = self.updater.module("critic", slow, frozen, first)
        if getattr(network, "choices", 0):
            said = self._once(
                ("outputs", at, slow, frozen, first), ("targets" if slow else "critic",),
                lambda: self._pass(network, at, slow, None),
            )  # fmt: skip
            return said if actions is None else _of_choices(said, actions)
        assert actions is not None
        return self._pass(network, at, slow, actions)

    def _pass(self, network: nn.Module, at: At, slow: bool, actions: Tensor | None) -> Tensor:
        self.updater.passes["critic"] += 1
        with noisy(network, self.draw, f"noise {at}{' copy' if slow else ''}"):
            said: Tensor = network(self.seen(at), actions)
        return said

    def values(self, outputs: Tensor) -> Tensor:
        found: Tensor = self.updater.method.critic.head.mean(outputs)  # type: ignore[attr-defined]
        return found

    def offered(self, name: str) -> Tensor:
        for learner, part in self.updater.offering.items():
            found = self._once(("offers", learner), (learner,), partial(self.updater.offers, part, learner))
            if name in found:
                value: Tensor = found[name].detach()
                return value
        raise KeyError(f"No learner offers {name}.")

    def normal(self, purpose: str, like: Tensor) -> Tensor:
        shape = like.shape[1:]
        return self.draw(purpose, lambda generator, times: torch.randn(times, *shape, generator=generator))


def _of_choices(said: Tensor, actions: Tensor) -> Tensor:
    """[P, M, N, A, K] at choices [P, N, 1] -> [P, M, N, K]."""
    index = actions.long()[:, None, :, :, None].expand(-1, said.shape[1], -1, -1, said.shape[-1])
    return said.gather(3, index).squeeze(3)
