"""The policies that a method trains, each with what takes its steps and what learns beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.stages import OTHER, OWN
from etude.loops.states import below
from etude.loops.update import Updater
from etude.policies.language import LanguagePolicy

FIRST = "policy"
"""The player of a method that trains one policy; in checkpoints its tensors stand without a prefix."""
PREFIXES = {OWN: "optimizer.", OTHER: "other_optimizer."}
"""Of the optimizers' tensors in checkpoints."""


@dataclass
class Player:
    """A policy, and what takes its steps and those of its learners."""

    policy: LanguagePolicy
    updater: Updater

    def tensors(self) -> dict[str, Tensor]:
        """All tensors that its next step depends on."""
        steppers = self.updater.steppers.items()
        stepper = {f"{PREFIXES[turn]}{k}": v for turn, s in steppers for k, v in s.tensors().items()}
        learners = self.updater.learners.tensors()
        return {**self.policy.tensors(), **stepper, **learners, "noise": self.updater.noise.sums}

    def counters(self) -> dict[str, Any]:
        """What else it depends on, as JSON."""
        return {"version": self.policy.version, "budget": self.updater.budget, "halved": self.updater.halved}

    def load(self, tensors: Mapping[str, Tensor], counters: Mapping[str, Any]) -> None:
        """Undo `tensors` and `counters`; the optimizer and the learners are fresh, and those of the present stage."""
        updater = self.updater
        self.policy.load_tensors(dict(tensors))
        for turn, stepper in updater.steppers.items():
            moments = below(tensors, PREFIXES[turn])
            moments.setdefault("failures", torch.tensor(counters.get("bad_steps", 0)))  # where older runs had it
            stepper.load(moments)
        updater.learners.load(tensors)
        updater.noise.sums = tensors["noise"]
        self.policy.version = counters["version"]
        updater.budget, updater.halved = counters["budget"], counters["halved"]


Players = dict[str, Player]
"""By name, in the order of `TokenBatch.player`."""


def rows_of(players: Players, name: str, batch: TokenBatch) -> TokenBatch:
    """The rows that train this player; the batch itself where there is one."""
    if len(players) == 1 or batch.player is None:
        return batch
    return batch.rows((batch.player == list(players).index(name)).nonzero()[:, 0])


def saved(players: Players) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and counters of all players."""
    tensors = {f"{_below(name)}{k}": v for name, player in players.items() for k, v in player.tensors().items()}
    others = {name: player.counters() for name, player in players.items() if name != FIRST}
    return tensors, {**players[FIRST].counters(), **({"players": others} if others else {})}


def restore(players: Players, tensors: Mapping[str, Tensor], counters: Mapping[str, Any]) -> None:
    """Undo `saved`."""
    for name, player in players.items():
        start = _below(name)
        own = {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}
        player.load(own, counters if name == FIRST else counters["players"][name])


def _below(name: str) -> str:
    return "" if name == FIRST else f"players.{name}."
