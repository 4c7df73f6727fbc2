"""Recipes: a method that is a chain of runs, each with a method, a task and lengths of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from etude.core.errors import ConfigError, EtudeError
from etude.core.fields import Count
from etude.core.method import Method
from etude.core.part import Part
from etude.core.worlds import World

PREVIOUS, START = "previous", "start"
"""What a run can begin from besides a run that has a name: the run before it, and what the recipe began from."""
NAMED = re.compile(r"\{([^{}]+)\}")
"""What a run is handed, in the text of its task or of a field: `{judge}`. `{}` is a place in a template."""
NAME = re.compile(r"[a-z][a-z0-9-]*")


class Link(Part, abstract=True):
    """One run of a recipe. What it makes is handed on under its name.

    Args:
        called: its name in the recipe; `--set runs.NAME.FIELD=VALUE` reaches its fields.
        begins: whose policy it begins from: 'previous', the training run before it (in the first round's first run what
            the recipe began from); 'start', what the recipe began from; or the name of a run, its last one so far.
        task: what it is done on, the recipe's own task where empty; `{NAME}` is the data that a run made.
        set: fields of its method and of its task, as `--set` has them; `{NAME}` is what a run made.

    Raises: ConfigError for a name that is not of small letters, digits and dashes.
    """

    slot = "runs"
    trains: ClassVar[bool] = False
    """Whether it makes a policy (or a scorer), by training or of others, which a later run can begin from."""

    called: str = "run"
    begins: str = PREVIOUS
    task: str = ""
    set: tuple[str, ...] = ()

    def check(self) -> None:
        if not NAME.fullmatch(self.called) or self.called in (PREVIOUS, START):
            raise ConfigError(
                f"{type(self).__name__}.called must be a name of small letters, digits and dashes, and not "
                f"{PREVIOUS!r} or {START!r}, got {self.called!r}."
            )

    @property
    def budget(self) -> int:
        """Steps that it takes, in the unit of its world."""
        return 0

    @property
    def keeps(self) -> frozenset[str]:
        """What goes on from the run that it begins from, besides the policy: 'optimizer', 'reference'."""
        return frozenset()

    def worlds_of(self) -> frozenset[World]:
        """Where it can be done."""
        return self.worlds or frozenset(World)

    def takes(self) -> list[str]:
        """Names of the runs whose making its task and its fields name."""
        return [name for text in (self.task, *self.set) for name in NAMED.findall(text)]

    def methods(self) -> list[Method]:
        """What it trains by, in each world that this is made for."""
        return []

    def with_field(self, assignment: str) -> Link:
        """The run with a field of its method or task set. Raises EtudeError if it has no such field."""
        raise ConfigError(f"{self.called} trains nothing that has fields.")


@dataclass(frozen=True)
class Planned:
    """A run in its place.

    Args:
        number: from 1, all rounds together; `round` from 1.
        begins: the number of the run whose policy it begins from; None for what the recipe began from.
        handed: the number of the run that each name stands for.
    """

    number: int
    round: int
    link: Link
    begins: int | None
    handed: dict[str, int]

    @property
    def folder(self) -> str:
        """Below the recipe's: '02-rl'."""
        return f"{self.number:02d}-{self.link.called}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe(Method):
    """A chain of runs, of any kind and in any world, `repeat` times over.

    Each is an ordinary run in a folder below the recipe's, with its own method, task, lengths, optimizer and reference,
    and hands on under its name what it made: a policy, a reward model, a data set. Its steps are those of its runs, all
    rounds together; another number of them (`--steps`) is divided as theirs are.
    """

    runs: tuple[Link, ...] = ()
    repeat: Count = 1

    @property
    def worlds(self) -> frozenset[World]:  # type: ignore[override]  # of this chain, not of all
        """Where those of its runs can be done that have no task of their own."""
        own = [link.worlds_of() for link in self.runs if not link.task]
        anew = any(run.begins is not None and not run.link.keeps for run in self.plan())
        return frozenset(World).intersection(*own) - ({World.ENUMERABLE} if anew else set())  # tables are not models

    @property
    def budget(self) -> int:
        """Steps of all runs and rounds."""
        return self.repeat * sum(link.budget for link in self.runs)

    def plan(self) -> list[Planned]:
        """Every run, in order, and from which others it takes what."""
        planned: list[Planned] = []
        latest: dict[str, int] = {}
        before: int | None = None
        for turn in range(1, self.repeat + 1):
            for link in self.runs:
                named = {PREVIOUS: before, START: None}
                begins = named[link.begins] if link.begins in named else latest.get(link.begins)
                handed = {name: latest[name] for name in link.takes() if name in latest}
                planned.append(Planned(len(planned) + 1, turn, link, begins, handed))
                latest[link.called] = planned[-1].number
                before = planned[-1].number if link.trains else before
        return planned

    def made_of(self) -> list[Method]:
        return [method for link in self.runs for method in link.methods()]

    def taking(self, assignment: str) -> Method | None:
        """The recipe with a field set in every run whose method or task has it; None if none has."""
        changed, reached = [], False
        for link in self.runs:
            try:
                changed.append(link.with_field(assignment))
                reached = True
            except EtudeError:
                changed.append(link)
        return self.replace(runs=tuple(changed)) if reached else None

    def contradictions(self) -> Iterator[str]:
        if not self.runs:
            yield "it has no runs, so nothing would be trained: give it runs=(Train(...), ...)."
        if self.runs and self.runs[-1].trains and not self.runs[-1].budget:
            yield f"nothing takes what its last run, {self.runs[-1].called}, makes: let a run that trains follow."
        names = [link.called for link in self.runs]
        for name in dict.fromkeys(n for n in names if names.count(n) > 1):
            yield f"two runs are called {name}, and what they make is handed on by name: rename one."
        for place, link in enumerate(self.runs):
            yield from self._unmade(place, link)
            first = self.repeat == 1 and not any(one.trains for one in self.runs[:place])
            if link.keeps and (link.begins == START or (link.begins == PREVIOUS and first)):
                yield f"the run {link.called} keeps the {_listed(link.keeps)}, and no run before it has one: reset it."

    def _unmade(self, place: int, link: Link) -> Iterator[str]:
        """What a run is handed and nobody has made when it begins."""
        made = {one.called: one for one in self.runs[:place]}
        own = [link.begins] if link.begins not in (PREVIOUS, START, link.called) else []
        if link.begins == link.called and self.repeat == 1:
            own = [link.begins]
        for name in dict.fromkeys((*own, *link.takes())):
            later = next((one for one in self.runs[place:] if one.called == name), None)
            if name in made and name in own and not made[name].trains:
                yield f"the run {link.called} begins from {name}, which trains no policy: begin from a run that does."
            if name in made:
                continue
            if later is None:
                there = f"there are {', '.join(made)}" if made else "it is the first"
                yield f"the run {link.called} is handed {name}, which no run before it makes ({there})."
            elif later is link or link.called in (later.begins, *later.takes()):
                yield f"the runs {link.called} and {name} wait for each other: one of them has to begin without."
            else:
                yield f"the run {link.called} is handed {name}, which is made after it: put {name} before it."


def _listed(names: frozenset[str]) -> str:
    return " and the ".join(sorted(names))
