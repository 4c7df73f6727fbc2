"""What differs between runs of different kinds of method: a file each, looked up by the method's kind."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast

from etude.core.errors import ConfigError
from etude.core.kinds import ReplayMethod, RolloutMethod, TokenMethod
from etude.core.loop import Loop
from etude.core.method import Method
from etude.core.recipe import Recipe
from etude.core.registry import load_attribute
from etude.core.task import Task
from etude.loops import loop_class
from etude.runs.training import EVERYWHERE, Options, Result
from etude.runs.worlds import world_of

if TYPE_CHECKING:
    from etude.runtime.folder import RunFolder
    from etude.runtime.sources import Inputs

MAKING = frozenset({
    "model", "adapter", "device", "dtype", "autocast", "gradient_checkpointing", "seeds", "evaluate_samples",
    "evaluate_split", "evaluate_temperature", "evaluate_judge",
})  # fmt: skip
"""Options that the world reads by itself, to make and to evaluate what a loop trains."""


M = TypeVar("M", bound=Method)
L = TypeVar("L", bound=Loop)


class RunOfKind(Generic[M, L]):
    """What differs by kind. A kind that is not in `RUNS` has what stands here; a budget is in the world's unit."""

    READS: ClassVar[frozenset[str]] = MAKING
    """Options of the world that its loop has a use for."""
    LEAVES: ClassVar[frozenset[str]] = frozenset()
    """Options that every other run reads, and runs of this kind do not."""
    extends: ClassVar[bool] = True
    """Whether a run can be resumed to another number of steps."""

    def check(self, method: M, task: Task) -> None:
        """Raise ConfigError where no loop trains it."""
        loop_class(type(method), task.world)

    def ready(self, method: M, task: Task, options: Options) -> None:
        """Do what may fail before anything is written, what depends on the world included."""
        world_of(task).prepare(method, task, options)
        self.prepare(method, task, options)

    def budget(self, method: M, task: Task) -> int:
        """What a run takes where nothing else is said, in the world's unit."""
        return world_of(task).budget(task)

    def suited(self, method: M, task: Task) -> tuple[M, str]:
        """The method as what this task shows asks for, and a sentence about what was changed; '' for nothing."""
        return cast("tuple[M, str]", world_of(task).suited(method, task))

    def timed(self, method: M, task: Task, options: Options) -> Options:
        """The options with what a run of this kind chooses where nobody did: when it evaluates."""
        return options

    def session(
        self, folder: RunFolder, method: M, task: Task, options: Options, called: Sequence[Any],
        inputs: Callable[[], Inputs] | None,
    ) -> Result:  # fmt: skip
        """Train to the end, in a folder that is new or at its newest checkpoint."""
        from etude.runs.session import train_in

        return train_in(folder, method, task, options, called, inputs)

    def prepare(self, method: M, task: Task, options: Options) -> None:
        """Do what may fail before anything is written."""

    def training_steps(self, method: M, budget: int) -> int:
        """How many steps of the loop a budget is."""
        return budget

    def build(self, method: M, task: Task, options: Options) -> L:
        """The loop, from a whole budget in `options.steps`, with what the world trains."""
        assert options.steps is not None
        build = cast(Callable[..., L], loop_class(type(method), task.world))
        given = world_of(task).arguments(method, task, options)
        return build(method, task, steps=self.training_steps(method, options.steps), **given)

    def sentence(self, loop: L, method: M, task: Task) -> str:
        """What will run, for people."""
        return f"{world_of(task).size(loop, method, task)}."

    def rate(self, loop: L, method: M, task: Task) -> str:
        """The learning rate and its rule, where nobody chose one; else empty."""
        return world_of(task).rate(loop, method)

    def promises(self, loop: L) -> dict[str, Any]:
        """What was tried on this machine when the loop was built, for `environment.json`."""
        return {}

    def end(self, loop: L) -> None:
        """End what was started beside the loop."""

    def acts(self, method: M) -> bool:
        """Whether what is trained acts or samples, so that it can be evaluated."""
        return True

    def samples(self, method: M) -> bool:
        """Whether the policy samples while it trains, so that its rewards make a learning curve."""
        return True

    def counts(self, method: M, usual: str) -> str:
        """What the steps of a run count, in words, where those of this world usually count what is given."""
        return usual


RUNS: dict[type[Method], str] = {
    TokenMethod: "etude.runs.kinds.token:TokenRun",
    RolloutMethod: "etude.runs.kinds.rollout:RolloutRun",
    ReplayMethod: "etude.runs.kinds.replay:ReplayRun",
    Recipe: "etude.runs.kinds.recipe:RecipeRun",
}
"""The run of a kind, as 'module:Class'."""


def run_of(method: M) -> RunOfKind[M, Loop]:
    """How a method of this kind is run."""
    run = load_attribute(RUNS[type(method)])() if type(method) in RUNS else RunOfKind()
    assert isinstance(run, RunOfKind)
    return run


def check_options(options: Options, method: Method, task: Task) -> None:
    """Raise ConfigError for an option that was set and that a run of this method on this task would not read."""
    if options.evaluate_every is not None and not run_of(method).acts(method):
        raise ConfigError(f"{method.id} trains what does not act, so --evaluate-every has nothing to evaluate.")
    read = (EVERYWHERE - run_of(method).LEAVES) | (world_of(task).READS & run_of(method).READS)
    for option in dataclasses.fields(Options):
        if option.name in read or getattr(options, option.name) == option.default:
            continue
        of = f"{task.id}, a task of {task.world}"
        if option.name in world_of(task).READS | EVERYWHERE:
            of = f"{method.id}, a {type(method).__name__}"
        raise ConfigError(f"--{option.name.replace('_', '-')} means nothing for {of}: leave it out.")
