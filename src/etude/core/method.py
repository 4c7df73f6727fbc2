"""A method: which part fills each slot. A published method is written as the difference from its parent."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from etude.core.errors import CheckpointError, ConfigError, UnknownNameError
from etude.core.fields import Count
from etude.core.part import Part, check_field, from_json, hints, to_json
from etude.core.slots import (
    Advantages,
    Critic,
    Curriculum,
    Experience,
    Filter,
    GroupReward,
    Objective,
    Optimizer,
    Policy,
    Reference,
    Regularizer,
    Reward,
    Stage,
    StepReward,
    TokenReward,
    TokenWeights,
)  # fmt: skip

Aggregation = Literal["token-mean", "sequence-mean", "fixed-length"]
META = ("id", "title", "paper", "kind", "parent", "claim")


@dataclass(frozen=True)
class Claim:
    """What the paper says, small enough to check here.

    Args:
        statement: the claim as a sentence about this experiment.
        baseline: id of the method it is compared with.
        metric: a key of the evaluation ('pass@1', 'pass@8', ...).
        direction: whether the method should be 'higher' or 'lower' than the baseline.
        margin: the smallest difference that counts.
        changes: fields set on both arms, by path (`{"optimizer.lr": 1e-3}`).
        steps, seeds: the budget of each arm; five minutes on two cores for everything.
        experiment: 'module:function' of an experiment of its own, for claims that are not a comparison of runs.
    """

    statement: str
    baseline: str = ""
    task: str = "compose"
    model: str = "tiny"
    metric: str = "pass@1"
    direction: Literal["higher", "lower"] = "higher"
    margin: float = 0.0
    steps: int = 60
    seeds: int = 3
    changes: Mapping[str, Any] = field(default_factory=dict)
    experiment: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """All that a run does, as values. Printing it prints everything.

    Sizes: `problems` per step; completions per problem are the experience's; memory decides the rest.
    `epochs` passes over each batch, each in `minibatches` optimizer steps.
    """

    id: str
    title: str = ""
    paper: str = ""
    kind: str = "method"
    parent: str | None = None
    claim: Claim | None = None

    stages: tuple[Stage, ...] = ()
    curriculum: Curriculum | None = None
    policy: Policy | None = None
    experience: Experience | None = None
    rewards: tuple[Reward | TokenReward | GroupReward | StepReward, ...] = ()
    advantages: Advantages | None = None
    filters: tuple[Filter, ...] = ()
    objective: Objective | None = None
    token_weights: tuple[TokenWeights, ...] = ()
    aggregation: Aggregation = "token-mean"
    regularizers: tuple[Regularizer, ...] = ()
    reference: Reference | None = None
    critic: Critic | None = None
    optimizer: Optimizer | None = None
    problems: Count = 16
    epochs: Count = 1
    minibatches: Count = 1
    on_control: Mapping[str, Any] = field(default_factory=dict)
    """Slots that hold something else when the task is one of control."""

    def __post_init__(self) -> None:
        for name, hint in hints(type(self)).items():
            if name not in META and name != "on_control":
                object.__setattr__(self, name, check_field(f"{self.id}: {name}", hint, getattr(self, name)))

    # Composition

    def replace(self, **changes: Any) -> Method:
        """A new method with some slots changed; given a new `id`, this method becomes its parent.

        A child says itself what it is in control (`on_control`): what it changes might mean nothing there.
        """
        for key in changes:
            if key not in hints(type(self)):
                raise UnknownNameError(f"slot of {self.id}", key, hints(type(self)))
        if changes.get("id", self.id) != self.id:
            changes = {"parent": self.id, "title": "", "paper": "", "claim": None, "on_control": {}, **changes}
        return dataclasses.replace(self, **changes)

    def slots(self) -> dict[str, Any]:
        """What fills each slot, by name."""
        return {k: getattr(self, k) for k in hints(type(self)) if k not in META}

    def parts(self) -> dict[str, Part]:
        """Every part by its path, parts inside parts included."""
        found: dict[str, Part] = {}

        def visit(path: str, value: Any) -> None:
            if isinstance(value, tuple):
                for i, v in enumerate(value):
                    visit(f"{path}.{i}", v)
            elif isinstance(value, Part):
                found[path] = value
                for k, v in value.fields().items():
                    visit(f"{path}.{k}", v)

        for name, value in self.slots().items():
            visit(name, value)
        return found

    def needs(self, *slots: str) -> frozenset[str]:
        """All that its parts need computed, or those in some slots only."""
        parts = self.parts().items()
        return frozenset().union(*(p.needs for path, p in parts if not slots or path.split(".")[0] in slots))

    def behaviour_user(self) -> Part | None:
        """The first part that takes `behaviour_logp` for the policy's own log-probabilities, whatever its slot."""
        return next((part for part in self.parts().values() if part.uses_behaviour), None)

    def check(self) -> None:
        """Raise ConfigError, in a sentence, if parts contradict each other."""
        for part in self.parts().values():
            if objection := part.objection(self):
                raise ConfigError(f"{self.id}: {type(part).__name__} {objection}")

    def on(self, loop: str) -> Method:
        """The method as it is for tasks of this loop ('language', 'control')."""
        return self.replace(**self.on_control, on_control={}) if loop == "control" else self

    # A run's copy

    def bind(self) -> Method:
        """A copy whose parts have states of their own."""

        def bound(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(bound(v) for v in value)
            return value.bind() if isinstance(value, Part) else value

        return self.replace(**{slot: bound(value) for slot, value in self.slots().items()})

    def state_dict(self) -> dict[str, Any]:
        """States of the parts that have any, by path."""
        return {path: part.state for path, part in self.parts().items() if part.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore exactly what `state_dict` returned. Raises CheckpointError for a part that this method lacks."""
        parts = self.parts()
        for path in state:
            if path not in parts:
                raise CheckpointError(f"The checkpoint has a state for {path}, but {self.id} has no part there.")
        for path, part in parts.items():
            part.state.clear()
            part.state.update(state.get(path, {}))

    # What it shows

    def diff(self, other: Method) -> dict[str, tuple[Any, Any]]:
        """Fields that differ, by path: `{path: (other's value, this one's)}`."""
        mine, theirs = _flat(self.slots()), _flat(other.slots())
        ordered = [*mine, *(k for k in theirs if k not in mine)]
        return {k: (theirs.get(k), mine.get(k)) for k in ordered if theirs.get(k) != mine.get(k)}

    def to_json(self) -> dict[str, Any]:
        """The method as JSON values, every part and every value."""
        meta = {k: getattr(self, k) for k in META if k != "claim"}
        return {**meta, **{k: to_json(v) for k, v in self.slots().items()}}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Method:
        """Undo `to_json`. Raises UnknownNameError for a slot, part or field that does not exist."""
        for key in data:
            if key not in hints(Method):
                raise UnknownNameError("slot", key, hints(Method))
        return Method(**{k: v if k in META else from_json(v) for k, v in data.items()})

    def describe(self) -> str:
        """The method as a tree, empty slots left out."""
        lines = [f"{self.id}" + (f"  ({self.paper})" if self.paper else "")]
        lines += _lines({k: v for k, v in self.slots().items() if k != "on_control" and v not in (None, (), {})})
        if self.on_control:
            lines += ["in control, instead:", *_lines(self.on_control)]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.describe()


def _lines(slots: Mapping[str, Any]) -> list[str]:
    """One line per part; a slot that holds nothing is said to be empty."""
    lines = []
    for slot, value in slots.items():
        values = value if isinstance(value, tuple) and value else (value,)
        shown = ["nothing" if v in (None, ()) else _show(v) for v in values]
        lines += [f"  {slot if i == 0 else '':<14} {text}" for i, text in enumerate(shown)]
    return lines


def _show(value: Any) -> str:
    if not isinstance(value, Part):
        return str(value)
    inside = ", ".join(f"{k}={_show(v)}" for k, v in value.fields().items())
    return f"{type(value).__name__}({inside})"


def _flat(slots: Mapping[str, Any]) -> dict[str, Any]:
    """Slots as `path: value`; a part shows as its name plus one entry per field."""
    flat: dict[str, Any] = {}

    def put(path: str, value: Any) -> None:
        if isinstance(value, tuple) and value and all(isinstance(v, Part) for v in value):
            names = [v.name for v in value]
            for i, part in enumerate(value):
                put(f"{path}.{part.name}" if names.count(part.name) == 1 else f"{path}.{i}", part)
        elif isinstance(value, Part):
            flat[path] = value.name
            for k, v in value.fields().items():
                put(f"{path}.{k}", v)
        elif value not in ((), {}, None):
            flat[path] = value

    for name, value in slots.items():
        for slot, inside in value.items() if name == "on_control" else [(None, value)]:
            put(name if slot is None else f"{name}.{slot}", inside)
    return flat
