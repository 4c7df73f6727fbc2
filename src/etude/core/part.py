"""A part: a small frozen dataclass whose fields are its hyper-parameters.

Writing `class Clip(TokenObjective): low: Fraction = 0.2` is all it takes: the class becomes a frozen dataclass,
its fields are checked when it is made, and its name (`clip`) can be used on the command line and in JSON.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self, dataclass_transform, get_args, get_origin, get_type_hints

from etude.core.errors import ConfigError, UnknownNameError
from etude.core.fields import check
from etude.core.worlds import World

if TYPE_CHECKING:
    from etude.core.method import Method
    from etude.core.task import Task


class Need(StrEnum):
    """What a loop computes once, and only for parts that declare it."""

    ENTROPY = "entropy"
    VALUES = "values"
    HIDDEN = "hidden"
    LOGITS = "logits"
    REFERENCE = "reference"  # the reference itself, to be asked about other texts
    REFERENCE_LOGP = "reference_logp"
    REFERENCE_VALUES = "reference_values"  # log sum exp of its logits: what it says of a text whose logits are Q
    PROXIMAL_LOGP = "proximal_logp"  # the policy as it is when a training step begins, before its first update
    ROW_LOSS = "row_loss"
    KL = "kl"  # KL(behaviour || policy) of every step, exact
    KL_PARTS = "kl_parts"  # what the means make of it, or choices, and what the deviations do
    NEXT_OBSERVATIONS = "next_observations"  # and `discounts`: what a step led to, the last of an episode included
    ESTIMATE = "estimate"  # what a learner estimates, with gradient, and its error apart
    COSTS = "costs"  # what the environment says in `info["cost"]`
    PROGRESS = "progress"  # what the environment says in `info["subgoal_progress"]`


_together: ContextVar[bool] = ContextVar("together", default=False)


@contextmanager
def together() -> Iterator[None]:
    """Parts that are made inside may contradict themselves while several fields change; whoever changes them checks."""
    token = _together.set(True)
    try:
        yield
    finally:
        _together.reset(token)


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
class Part:
    """Base of all parts. Pure where it can be; what it learns or counts lives in `state`."""

    slot: ClassVar[str] = ""
    """The method's slot that this kind of part fills."""
    name: ClassVar[str] = "part"
    """What the command line and JSON call it: the class name in kebab case."""
    needs: ClassVar[frozenset[Need]] = frozenset()
    """What the loop must compute or have for it; names are checked when the class is made."""
    worlds: ClassVar[frozenset[World]] = frozenset()
    """Where it works; empty: wherever a method that holds it does."""
    abstract: ClassVar[bool] = True
    """Whether only classes below it can fill a slot."""

    foreign: ClassVar[str] = ""
    """Name of the part that makes one of this kind of what a user names and that is no part; '' where nothing can."""
    uses_behaviour: ClassVar[bool] = False
    """Whether it takes `behaviour_logp` for the policy's own log-probabilities (importance ratios, estimates of a KL
    divergence or an entropy), so that what is sampled otherwise would bias it."""
    sees_unfinished: ClassVar[bool] = False
    """Whether `before_update` is shown rows that have no outcome yet, too."""

    if TYPE_CHECKING:
        __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]  # every class below is made a dataclass

    def __init_subclass__(cls, abstract: bool = False, **options: object) -> None:
        super().__init_subclass__(**options)
        dataclasses.dataclass(frozen=True)(cls)
        cls.abstract = abstract
        if "name" not in cls.__dict__:
            cls.name = kebab(cls.__name__)
        known = [n.value for n in Need]
        for need in sorted(cls.needs - set(known)):
            raise UnknownNameError(f"need of {cls.__name__}", need, known, f"There are: {', '.join(known)}.")
        cls.needs = frozenset(map(Need, cls.needs))
        _part_classes.cache_clear()

    def __post_init__(self) -> None:
        for field, hint in hints(type(self)).items():
            checked = check_field(f"{type(self).__name__}.{field}", hint, getattr(self, field))
            object.__setattr__(self, field, checked)
        if not _together.get():
            self.check()

    def check(self) -> None:
        """Raise ConfigError if the fields contradict each other. Called when the part is made (but see `together`)."""

    def objection(self, method: Method) -> str | None:
        """Why this part cannot work in `method`, as the rest of a sentence; None if it can."""
        return None

    def lacks(self, task: Task) -> str | None:
        """What a task would have to have for this part, as a sentence; None if nothing is missing."""
        return None

    # What a part learns

    # Of a part's state one half of a step writes, and the other reads a copy that is as old as the rows that it reads
    # it with. Where one process runs both halves, the copy is the state itself.

    def before_update(self, batch: Any) -> None:
        """See everything that was scored in a training step, before advantages, and before filters drop rows from it.

        Called in *score*. What is written here (records of outcomes, judges that learn from what they judged) belongs
        to the half that gathers and scores. Rows that have no outcome yet are only shown to a part that
        `sees_unfinished`.

        Args:
            batch: a TokenBatch of every round of gathering; in control Transitions [P, T, E], once a step.
        """

    def after_update(self, batch: Any) -> None:
        """See what was learned from, with its `advantages`: a TokenBatch, or in control Transitions [P, T, E].

        Called in *learn*. What is written here (weights of an adversary, statistics of losses) belongs to the half
        that learns; `choose`, `collect` and the rewards of the next step read it.

        For a part that needs 'row_loss', `batch.row_loss` is there.
        """

    def initial_state(self) -> dict[str, Any]:
        """A fresh state: JSON values and tensors. Empty for a pure part."""
        return {}

    @property
    def state(self) -> dict[str, Any]:
        """What this part has learned or counted in the current run; saved in checkpoints."""
        try:
            state: dict[str, Any] = self.__dict__["_state"]
        except KeyError:
            raise RuntimeError(f"{type(self).__name__} has no state outside a run; call bind() first.") from None
        return state

    @property
    def made(self) -> dict[str, Any]:
        """What this part made for itself in the current run and can make again (a list, read once): not saved."""
        try:
            made: dict[str, Any] = self.__dict__["_made"]
        except KeyError:
            raise RuntimeError(f"{type(self).__name__} makes nothing outside a run; call bind() first.") from None
        return made

    def bind(self) -> Self:
        """A copy with a state of its own, parts inside it included: what a run works with."""
        copy = type(self)(**{k: _bind(v) for k, v in self.fields().items()})
        object.__setattr__(copy, "_state", copy.initial_state())
        object.__setattr__(copy, "_made", {})
        return copy

    def settle(self, name: str, value: object) -> None:
        """Give a run's copy a field that is no value of its type: a number for each member of a population."""
        object.__setattr__(self, name, value)

    # What a part shows

    def fields(self) -> dict[str, Any]:
        """Field values by name."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    def replace(self, **changes: object) -> Self:
        """A copy with some fields changed. Raises UnknownNameError for a field it does not have."""
        for key in changes:
            if key not in self.fields():
                raise UnknownNameError(f"field of {type(self).__name__}", key, self.fields())
        return type(self)(**{**self.fields(), **changes})

    @classmethod
    def upgrade(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """JSON values of its fields, those of runs from before it had today's fields included, in today's form."""
        return dict(values)

    def to_json(self) -> dict[str, Any]:
        """The part as JSON values; `part_from_json` reads it back."""
        cls = type(self)
        name = cls.name if cls.__module__.startswith("etude.") else f"{cls.__module__}:{cls.__qualname__}"
        return {"part": name, **{k: to_json(v) for k, v in self.fields().items()}}


def kebab(name: str) -> str:
    """`KLToReference` -> `kl-to-reference`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name).lower()


_hints: dict[type, dict[str, Any]] = {}


def hints(cls: type) -> dict[str, Any]:
    """Type of every field that a part or method is made with, annotations included."""
    if cls not in _hints:
        resolved = get_type_hints(cls, include_extras=True)
        _hints[cls] = {f.name: resolved[f.name] for f in dataclasses.fields(cls) if f.init}
    return _hints[cls]


def part_types(hint: object) -> tuple[tuple[type[Part], ...], bool]:
    """The Part classes a field may hold (none if it holds values) and whether it holds a tuple of them."""
    if isinstance(hint, type) and issubclass(hint, Part):
        return (hint,), False
    many = get_origin(hint) is tuple
    inside = [part_types(arg) for arg in get_args(hint)]
    return tuple(c for classes, _ in inside for c in classes), many or any(m for _, m in inside)


def check_field(where: str, hint: object, value: object) -> Any:
    """Check one field, whether it holds a value, a part, or several parts."""
    allowed, many = part_types(hint)
    if not allowed:
        return check(where, hint, value)
    if value is None and type(None) in get_args(hint):
        return None
    several = isinstance(value, (tuple, list))
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    wrong = [v for v in values if not isinstance(v, allowed)] if several == many else [value]
    if wrong:
        names = " or ".join(c.__name__ for c in allowed)
        raise ConfigError(
            f"{where} must be {f'a list of {names} parts' if many else f'a {names} part'}, got {wrong[0]!r}."
        )
    return values if many else value


def _bind(value: object) -> Any:
    if isinstance(value, Part):
        return value.bind()
    return tuple(_bind(v) for v in value) if isinstance(value, tuple) else value


def to_json(value: object) -> Any:
    """A field value as JSON."""
    if isinstance(value, Part):
        return value.to_json()
    if isinstance(value, (tuple, list)):
        return [to_json(v) for v in value]
    if isinstance(value, Mapping):
        return {k: to_json(v) for k, v in value.items()}
    return value


def from_json(value: object) -> Any:
    """Undo `to_json`: lists become tuples, objects with a 'part' become parts."""
    if isinstance(value, list):
        return tuple(from_json(v) for v in value)
    if isinstance(value, dict) and "part" in value:
        return part_from_json(value)
    return {k: from_json(v) for k, v in value.items()} if isinstance(value, dict) else value


def part_from_json(data: Mapping[str, Any]) -> Part:
    """The part that `to_json` wrote. Raises UnknownNameError for an unknown part or field."""
    cls = part_class(data["part"])
    written = cls.upgrade({k: v for k, v in data.items() if k != "part"})
    values = {k: from_json(v) for k, v in written.items()}
    for key in values:
        if key not in hints(cls):
            raise UnknownNameError(f"field of {cls.__name__}", key, hints(cls))
    return cls(**values)


def upgraded(values: Mapping[str, Any], field: str, parts: Mapping[str, str | None]) -> dict[str, Any]:
    """JSON values whose `field` was the name of a mode and is a part: `parts` has the part's name by the mode's.

    >>> upgraded({"baseline": "batch"}, "baseline", {"batch": "batch-mean", "none": None})
    {'baseline': {'part': 'batch-mean'}}
    """
    mode = values.get(field)
    if not isinstance(mode, str) or mode not in parts:
        return dict(values)
    name = parts[mode]
    return {**values, field: None if name is None else {"part": name}}


def walk(cls: type[Part] = Part) -> Iterator[type[Part]]:
    """Every part class that is loaded."""
    for sub in cls.__subclasses__():
        yield sub
        yield from walk(sub)


def part_class(name: str) -> type[Part]:
    """The part class called `name` ('clip-cov', or 'my_module:MyPart'). Raises UnknownNameError."""
    if ":" in name:
        from etude.core.registry import load_class

        return load_class(name, Part, "a Part class")
    classes = part_classes()
    if name in classes and not _is_its_modules(classes[name]):  # put into the module, or taken out, since
        _part_classes.cache_clear()
        classes = part_classes()
    if name not in classes:
        raise UnknownNameError("part", name, classes, "`etude parts` lists them all.")
    return classes[name]


def part_classes() -> Mapping[str, type[Part]]:
    """All parts that can be used by name, from the library's slots, methods and what else of it is loaded; sorted.

    A class counts that its module has: not one that was loaded again since, nor one of an example in a docstring.

    Raises: ConfigError for two classes of one name.
    """
    from etude.core.registry import import_parts

    import_parts()
    return _part_classes(len(sys.modules))


@lru_cache(maxsize=1)
def _part_classes(modules: int) -> Mapping[str, type[Part]]:
    """As long as no class is defined and no module comes or goes: a method's JSON asks for each of its parts."""
    found: dict[str, type[Part]] = {}
    for cls in walk():
        if cls.abstract or not cls.__module__.startswith("etude.") or not _is_its_modules(cls):
            continue
        before = found.setdefault(cls.name, cls)
        if before is not cls:
            raise ConfigError(
                f"{cls.__module__}.{cls.__name__} is called {cls.name!r}, and so is "
                f"{before.__module__}.{before.__name__}: rename one of these classes."
            )
    return MappingProxyType(dict(sorted(found.items())))  # else what was imported first would come first


def _is_its_modules(cls: type[Part]) -> bool:
    return getattr(sys.modules.get(cls.__module__), cls.__name__, None) is cls
