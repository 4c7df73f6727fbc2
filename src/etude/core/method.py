"""What every method is, whatever its loop: parts in slots, a parent to differ from, a claim, a state.

`core/kinds.py` has the kinds, one for each loop, with the slots that it reads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

from etude.core import stages
from etude.core.claims import Claim
from etude.core.errors import CheckpointError, ConfigError, UnknownNameError
from etude.core.part import Need, Part, check_field, from_json, hints, to_json
from etude.core.worlds import World

if TYPE_CHECKING:
    from etude.core.task import Task

META = ("id", "title", "paper", "row", "parent", "claim")


def kind_name(kind: type[Method]) -> str:
    """What JSON calls a kind of method: its class; one from outside as 'module:Class'."""
    return kind.__name__ if kind.__module__.startswith("etude.") else f"{kind.__module__}:{kind.__qualname__}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """All that a run does, as values. Printing it prints everything.

    A kind of method adds the slots that its loop reads, so that nothing can be set that nobody reads.

    Args:
        id: what it is called; one of each kind at most.
        row: what the catalogue lists it as: 'method', 'analysis', 'theory', 'system', 'survey'.
        parent: id of the method of the same kind that this one is written as the difference from.
    """

    worlds: ClassVar[frozenset[World]] = frozenset()
    """Where its loops can train it."""
    required: ClassVar[tuple[str, ...]] = ()
    """Slots without which nothing can be trained."""
    absent: ClassVar[Mapping[World, tuple[str, ...]]] = {}
    """Slots that mean nothing in one of its worlds."""
    stays: ClassVar[Mapping[str, str]] = {}
    """Slots that a stage may change only if it resets this slot; '' for never."""
    computes: ClassVar[frozenset[Need]] = frozenset()
    """What its loops compute for parts that need it."""

    id: str
    title: str = ""
    paper: str = ""
    row: str = "method"
    parent: str | None = None
    claim: Claim | None = None
    _walked: dict[tuple[str, ...] | None, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What was found by walking through the slots: they cannot change, so one walk is enough."""

    def __post_init__(self) -> None:
        for name in self.slot_names():
            value = check_field(f"{self.id}: {name}", hints(type(self))[name], getattr(self, name))
            object.__setattr__(self, name, value)

    @classmethod
    def slot_names(cls) -> tuple[str, ...]:
        """Names of the slots of this kind, in order."""
        return tuple(k for k in hints(cls) if k not in META)

    # Composition

    def replace(self, **changes: Any) -> Self:
        """A new method with some slots changed; given a new `id`, this method becomes its parent.

        Raises: UnknownNameError for a slot that this kind does not have.
        """
        for key in changes:
            if key not in hints(type(self)):
                raise UnknownNameError(f"slot of {self.id}", key, hints(type(self)))
        if changes.get("id", self.id) != self.id:
            changes = {"parent": self.id, "title": "", "paper": "", "row": "method", "claim": None, **changes}
        return dataclasses.replace(self, **changes)

    def taking(self, assignment: str) -> Method | None:
        """The method with a field set that methods which it is made of have; None if none of them has it."""
        return None

    def made_of(self) -> list[Method]:
        """The methods that it names and trains, as they are by themselves."""
        return []

    def slots(self) -> dict[str, Any]:
        """What fills each slot, by name."""
        return {k: getattr(self, k) for k in self.slot_names()}

    def parts(self) -> dict[str, Part]:
        """Every part by its path, parts inside parts included."""
        if None not in self._walked:
            held = self.slots().items()
            self._walked[None] = {path: part for name, value in held for path, part in _walk(name, value)}
        return dict(self._walked[None])

    def needs(self, *slots: str) -> frozenset[Need]:
        """All that its parts need computed, or those in some slots only."""
        if slots not in self._walked:
            inside = [part for path, part in self.parts().items() if not slots or path.partition(".")[0] in slots]
            self._walked[slots] = frozenset[Need]().union(*(part.needs for part in inside))
        needed: frozenset[Need] = self._walked[slots]
        return needed

    @property
    def completions(self) -> int | None:
        """How many completions each problem gets; None where there are no problems, or not so many of all."""
        return None

    def behaviour_user(self) -> Part | None:
        """The first part that takes `behaviour_logp` for the policy's own log-probabilities, whatever its slot."""
        return next((part for part in self.parts().values() if part.uses_behaviour), None)

    # What cannot work together

    def objections(self) -> Iterator[str]:
        """Every reason why this cannot be trained, whatever the task, as sentences (`core/fit.py` asks)."""
        missing = [slot for slot in self.required if getattr(self, slot) is None]
        for slot in missing:
            yield f"{self.id} has no {slot}, so it cannot be trained."
        kind = type(self).__name__
        for path, part in self.parts().items():
            name = type(part).__name__
            if part.worlds and part.worlds.isdisjoint(self.worlds):
                where, here = (" and ".join(sorted(worlds)) for worlds in (part.worlds, self.worlds))
                yield f"{self.id}: {name} ({path}) is for tasks of {where}, and a {kind} is for those of {here}."
                continue
            if objection := part.objection(self):
                yield f"{self.id}: {name} {objection}"
            for need in sorted(part.needs - self.computes):
                yield f"{self.id}: {name} needs {need}, which the loop of a {kind} does not compute."
        if not missing:
            for sentence in (*self.contradictions(), *stages.objections(self)):
                yield f"{self.id}: {sentence}"

    def check(self) -> None:
        """Raise ConfigError with the first objection, if there is any."""
        if sentence := next(self.objections(), None):
            raise ConfigError(sentence)

    def contradictions(self) -> Iterator[str]:
        """What contradicts between the slots of this kind, all that are required being there."""
        yield from ()

    def misfits(self, task: Task) -> Iterator[str]:
        """What of it, all slots together, does not go with a task, as sentences."""
        yield from ()

    # A run's copy

    def bind(self) -> Self:
        """A copy whose parts have states of their own."""

        def bound(value: object) -> object:
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
        """Fields that differ, by path: `{path: (other's value, this one's)}`.

        Raises: ConfigError if the other is of another kind: their slots mean different things.
        """
        if type(self) is not type(other):
            raise ConfigError(
                f"{self.id} is a {type(self).__name__} and {other.id} a {type(other).__name__}: only methods of one "
                "kind can be compared slot by slot."
            )
        mine, theirs = _flat(self.slots()), _flat(other.slots())
        slots = self.slot_names()
        ordered = sorted({**mine, **theirs}, key=lambda path: slots.index(path.partition(".")[0]))
        return {k: (theirs.get(k), mine.get(k)) for k in ordered if theirs.get(k) != mine.get(k)}

    def to_json(self) -> dict[str, Any]:
        """The method as JSON values, its kind, every part and every value."""
        meta = {k: getattr(self, k) for k in META if k != "claim"}
        return {"type": kind_name(type(self)), **meta, **{k: to_json(v) for k, v in self.slots().items()}}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Method:
        """Undo `to_json`; also reads runs from before there were kinds.

        Raises: UnknownNameError for a kind, slot, part or field that does not exist; ConfigError for a slot that is
        set and that this kind does not have.
        """
        from etude.core.kind_names import read

        cls, values = read(data)
        for key in values:
            if key not in hints(cls):
                raise UnknownNameError("slot", key, hints(cls))
        return cls(**{k: v if k in META else from_json(v) for k, v in values.items()})

    def describe(self) -> str:
        """The method as a tree, empty slots left out."""
        lines = [f"{self.id}" + (f"  ({self.paper})" if self.paper else "")]
        for slot, value in self.slots().items():
            if value not in (None, ()):
                values = value if isinstance(value, tuple) else (value,)
                lines += [f"  {slot if i == 0 else '':<14} {_show(v)}" for i, v in enumerate(values)]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.describe()


def _walk(path: str, value: object) -> Iterator[tuple[str, Part]]:
    """Parts below a value, each with its path."""
    if isinstance(value, tuple):
        for i, v in enumerate(value):
            yield from _walk(f"{path}.{i}", v)
    elif isinstance(value, Part):
        yield path, value
        for k, v in value.fields().items():
            if isinstance(v, (Part, tuple)):
                yield from _walk(f"{path}.{k}", v)


def _show(value: object) -> str:
    if not isinstance(value, Part):
        return str(value)
    inside = ", ".join(f"{k}={_show(v)}" for k, v in value.fields().items())
    return f"{type(value).__name__}({inside})"


def _flat(slots: Mapping[str, Any]) -> dict[str, Any]:
    """Slots as `path: value`; a part shows as its name plus one entry per field."""
    flat: dict[str, Any] = {}

    def put(path: str, value: object) -> None:
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
        put(name, value)
    return flat
