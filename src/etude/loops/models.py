"""The models that a method trains, by name: each with what takes its steps and what learns beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from etude.core.episodes import FIRST
from etude.core.player_slots import Role
from etude.core.stages import OTHER, OWN
from etude.loops.states import below
from etude.loops.update import Updater
from etude.policies.ensemble import beside
from etude.policies.language import LanguagePolicy
from etude.policies.sparing import mark, recalled, spared
from etude.runtime.shards import Shard

PREFIXES = {OWN: "optimizer.", OTHER: "other_optimizer."}
"""Of the optimizers' tensors in checkpoints."""


@dataclass
class Trained:
    """A policy, and what takes its steps and those of its learners."""

    policy: LanguagePolicy
    updater: Updater

    def tensors(self) -> dict[str, Tensor]:
        """All tensors that its next step depends on."""
        steppers = self.updater.steppers.items()
        stepper = {f"{PREFIXES[turn]}{k}": v for turn, s in steppers for k, v in s.tensors().items()}
        learners = self.updater.learners.tensors()
        return {**self.policy.tensors(), **stepper, **learners, "noise": self.updater.noise.sums}

    def shards(self) -> dict[str, Shard]:
        """Which of `tensors` are divided among ranks, by name: this one has its rows of them alone."""
        weights = {f"model.{k}": p for k, p in self.policy.masters.parameters.items() if isinstance(p, Shard)}
        steppers = self.updater.steppers.items()
        return weights | {f"{PREFIXES[turn]}{k}": p for turn, s in steppers for k, p in s.shards().items()}

    def counters(self) -> dict[str, Any]:
        """What else it depends on, as JSON."""
        return {"version": self.policy.version, "budget": self.updater.budget, "halved": self.updater.halved}

    def load(self, tensors: Mapping[str, Tensor], counters: Mapping[str, Any]) -> None:
        """Undo `tensors`, given whole, and `counters`; optimizer and learners are fresh, and of the present stage."""
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


Models = dict[str, Trained]
"""By name, the one that the run begins with first; in checkpoints its tensors stand without a prefix."""


def policies_of(first: LanguagePolicy, roles: Sequence[Role]) -> dict[str, LanguagePolicy]:
    """The policies that these roles speak with, by name: the first, and those beside it as they begin."""
    found = {FIRST: first}
    for role in roles:
        if role.model not in found:
            found[role.model] = beside(first, role.model, role.start)
    return found


def place(folder: Path, name: str) -> Path:
    """Where in a checkpoint a model is saved, in Hugging Face's format."""
    return folder / "model" if name == FIRST else folder / "models" / name


def saved(models: Models, folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Write all models; what is to be saved beside them: tensors that they do not hold, and counters.

    What is divided among ranks is not among the tensors (`Team.save`).
    """
    tensors, counters = dict[str, Tensor](), dict[str, dict[str, Any]]()
    for name, model in models.items():
        where = place(folder, name)
        where.parent.mkdir(exist_ok=True)
        model.policy.save(where)
        left, start = spared(model.policy) | model.shards().keys(), _below(name)
        tensors |= {f"{start}{k}": v for k, v in model.tensors().items() if k not in left}
        counters[name] = {**model.counters(), "reference": mark(model.policy)}
    first = counters.pop(FIRST)
    return tensors, {**first, **({"models": counters} if counters else {})}


def restore(models: Models, tensors: Mapping[str, Tensor], counters: Mapping[str, Any], folder: Path) -> None:
    """Undo `saved`."""
    for name, model in models.items():
        own = below(tensors, _below(name)) if name != FIRST else dict(tensors)
        told = counters if name == FIRST else counters["models"][name]
        model.load(recalled(model.policy, own, place(folder, name), told.get("reference")), told)


def _below(name: str) -> str:
    return "" if name == FIRST else f"models.{name}."
