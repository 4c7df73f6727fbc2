"""Runs of a recipe: training, policies put together, and what is kept as data: completions, or rows of problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from etude.core.edit import set_value, stack
from etude.core.errors import ConfigError
from etude.core.fields import Count, Positive
from etude.core.method import Method
from etude.core.recipe import NAMED, Link
from etude.core.registry import compositions
from etude.core.worlds import World

if TYPE_CHECKING:
    from torch import Tensor

    from etude.core.episodes import Problem
    from etude.core.task import LanguageTask
    from etude.policies.language import LanguagePolicy


class Train(Link):
    """A run of a method, as `etude train METHOD --task TASK --steps N` does it.

    Its random numbers are those of the recipe's seed in the first run of a chain, and of seeds a million apart in those
    after it, so that rounds do not draw the same problems again; a run that keeps something counts its steps on from
    the run that it begins from, with that one's seed.

    Args:
        method: its id, with parts stacked as in 'grpo+kl-to-reference'; or 'file.py:name'.
        steps: in the unit of its task's world.
        optimizer: 'reset' begins with a fresh one; 'keep' goes on with that of the run it begins from, moments,
            schedule and all that parts have counted.
        reference: 'reset' holds back to the policy that it begins from; 'keep' to what the run before was held to.

    >>> rounds = Train(called="rl", method="grpo", steps=40, optimizer="keep", reference="keep")
    >>> rounds.budget, sorted(rounds.keeps), Train(called="sft", set=("task.data={right}",)).takes()
    (40, ['optimizer', 'reference'], ['right'])
    """

    trains: ClassVar[bool] = True

    method: str = "grpo"
    steps: Count = 150
    optimizer: Literal["reset", "keep"] = "reset"
    reference: Literal["reset", "keep"] = "reset"

    @property
    def budget(self) -> int:
        return self.steps

    @property
    def keeps(self) -> frozenset[str]:
        chosen = {"optimizer": self.optimizer, "reference": self.reference}
        return frozenset(what for what, choice in chosen.items() if choice == "keep")

    def worlds_of(self) -> frozenset[World]:
        return frozenset(world for method in compositions(self.method.split("+")[0]) for world in method.worlds)

    def methods(self) -> list[Method]:
        name, *parts = self.method.split("+")
        return [stack(method, parts) for method in compositions(name)]

    def with_field(self, assignment: str) -> Link:
        if NAMED.search(assignment):
            raise ConfigError(f"{assignment} names what a run makes: set it in that run, as in runs.{self.called}.set.")
        for method in self.methods():
            set_value(method, assignment)  # raises where it has no such field
        return self.replace(set=(*self.set, assignment))


class Collect(Link):
    """Completions of a policy, kept as data: rows with the prompt, the answer and the completion, by name `{NAME}`.

    Each problem is sampled `samples` times; what is kept of each is every right completion once, or every one. A method
    that learns from data has them as worked answers (`Train(method="sft", task="{NAME}")`): rejection sampling.

    Args:
        split: of the task.
        problems: the first so many of it.
        keep: 'right' ones, or 'all'.

    Raises: DataError if nothing is kept.

    >>> Collect(called="right", begins="rl", problems=200).budget
    0
    """

    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})

    split: str = "train"
    problems: Count = 100
    samples: Count = 4
    keep: Literal["right", "all"] = "right"
    temperature: Positive = 1.0


class Derive(Link, abstract=True):
    """Rows that are made of a task's problems, without a policy, and kept as data by name `{NAME}`.

    Args:
        split: of the task.
        problems: the first so many of it.

    Raises: DataError if nothing is made.
    """

    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})

    split: str = "train"
    problems: Count = 1000

    def rows(self, problems: Sequence[Problem], task: LanguageTask, seed: int) -> list[dict[str, Any]]:
        """What is written: `prompt`, `answer` and what else a reward reads, as JSON values."""
        raise NotImplementedError


class DeriveByPolicy(Link, abstract=True):
    """Rows that are made of a task's problems with the policy that it begins from, kept as data by name `{NAME}`.

    Args:
        split: of the task.
        problems: the first so many of it.

    Raises: DataError if nothing is made.
    """

    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})

    split: str = "train"
    problems: Count = 1000

    def rows_by(
        self, problems: Sequence[Problem], task: LanguageTask, policy: LanguagePolicy, seed: int
    ) -> list[dict[str, Any]]:
        """What is written: `prompt` and what else the runs behind it read, as JSON values."""
        raise NotImplementedError


class Combine(Link, abstract=True):
    """Policies of several runs as one, without training: later runs begin from it by name, as from one that trained.

    Args:
        of: the runs whose policies are put together; `begins` says which policy all of them began from.

    Raises: ConfigError for fewer than two of them; DataError for policies of different shapes.
    """

    trains: ClassVar[bool] = True
    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})

    of: tuple[str, ...] = ("one", "other")

    def check(self) -> None:
        super().check()
        if len(self.of) < 2:
            raise ConfigError(f"{type(self).__name__}.of must name at least two runs, got {list(self.of)}.")

    def takes(self) -> list[str]:
        return [*self.of, *super().takes()]

    def combined(self, base: Mapping[str, Tensor], others: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """The weights by name, of those that all began from and of each policy; shapes [...] of the same name."""
        raise NotImplementedError
