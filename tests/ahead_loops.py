"""Loops that gather ahead of their updates, and what they learned from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.experience.samplers import Sampler, Samplers
from etude.loops.language import LanguageLoop
from etude.loops.learn import Trainer
from etude.runtime.executors.local import Local
from language_toys import Toy, make_loop, random_policy, untimed

Make = Callable[..., LanguageLoop]


@contextmanager
def ahead(small: Any, usual: int) -> Iterator[Make]:
    """Loops whose samplers have a policy of their own; what they have in the air is left at the end."""
    made: list[LanguageLoop] = []

    def make(method: Any = small, bound: int = usual, steps: int = 10, task: Toy | None = None) -> LanguageLoop:
        task = task or Toy()
        samplers = Samplers(Local(Sampler(task, random_policy()), apart=True), task)
        made.append(make_loop(method, task, samplers=samplers, bound=bound, steps=steps))
        return made[-1]

    yield make
    for loop in made:
        if loop.ahead is not None:
            loop.ahead.close()


def numbers(loop: LanguageLoop, steps: int) -> list[dict[str, float]]:
    """What some steps report, but how long they took."""
    return [untimed(loop.step().metrics) for _ in range(steps)]


class Learned(NamedTuple):
    """A step, what the policy was when it began, and the rows."""

    step: int
    version: int
    weights: dict[str, Tensor]
    batch: TokenBatch


def watched(monkeypatch: pytest.MonkeyPatch) -> list[Learned]:
    """Every batch that is learned from, from now on."""
    seen: list[Learned] = []
    learn = Trainer.learn

    def watch(self: Trainer, players: Any, rows: Any, step: int, stream: Any) -> Any:
        policy = self.models["policy"].policy
        weights = {k: v.clone() for k, v in policy.tensors().items()}
        seen.append(Learned(step, policy.version, weights, rows["policy"]))
        return learn(self, players, rows, step, stream)

    monkeypatch.setattr(Trainer, "learn", watch)
    return seen
