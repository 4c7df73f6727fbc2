"""What differs between runs in different worlds: a file each, looked up by the task's world."""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from etude.core.errors import ConfigError
from etude.core.fields import Count, NonNegative, Probability, WholeNumber, check
from etude.core.loop import Loop
from etude.core.method import Method
from etude.core.part import Part
from etude.core.registry import compositions, files
from etude.core.task import Task
from etude.core.worlds import World
from etude.evaluation.report import Wording
from etude.rewards.several import Scoring
from etude.runs.training import Options, Result
from etude.runtime.looks import Look

if TYPE_CHECKING:
    from etude.evaluation.intervals import Interval

OF_LANGUAGE = frozenset({
    "model", "micro_tokens", "adapter", "device", "dtype", "autocast", "gradient_checkpointing", "evaluate_samples",
    "evaluate_split", "evaluate_temperature", "evaluate_judge", "on", "bound", "engine", "ranks", "shard",
})  # fmt: skip
"""Options of a run that language reads. They are here because reports of other worlds leave them out, and language
itself takes seconds to import."""


class Measured(NamedTuple):
    """What an evaluation in a run came to.

    Args:
        scores: {split: {metric: interval}}.
        samples: a few, to show.
        solved: {split: how many samples of each problem were right}, in worlds that have problems.
    """

    scores: dict[str, Any]
    samples: Sequence[Mapping[str, Any]] = ()
    solved: Mapping[str, list[int]] = {}


@dataclass(frozen=True)
class EvaluationOptions:
    """What is asked of a trained policy, besides the task: the names are the command line's.

    Args:
        k: sample counts of pass@k (language).
        problems: how many of each split (language).
        samples: completions per problem; None: the largest k (language).
        split: one split; None: all that are not trained on (language).
        reward: what scores, as in `train`; None: the run's own, if the task is the run's (language).
        search: how one answer to each problem is found, as in 'beam:4', or an `etude.planners.search.Search`
            (language).
        axes: what is shown of problems, of 'plan', 'knowledge', 'subproblems' with commas or in a list (language).
        judge: whether it judges solutions, its own and given ones: 'plain', or 'self-ref' with its own in view
            (language).
        judgements: of each solution, of which the commonest word counts, or the share that accepts (language).
        credit: the reference against which its tokens are credited on given answers: 'start', what the run began from,
            or a run, a folder, a hub name (language).
        temperature, top_p, max_tokens: how completions are sampled; None: the task's limit (language).
        view: what is seen of an episode before each turn, as in 'summary-at,most=8', or an
            `etude.experience.views.View`; None: what was seen in training (language).
        released: the date on which the model came out: what it resolves of dated tasks, older and fresh ones
            (language).
        episodes: of each member (control).
        data: logs that the policy of `member` is judged from, as `--data` of train takes them (control).
        gamma: the discount of what is estimated from them; None: the one that the method learns with (control).
        video: a file for an animated picture (GIF) of one episode of `member` (control).
    """

    k: Sequence[int] = (1, 8)
    problems: int = 100
    samples: int | None = None
    split: str | None = None
    seed: int = 0
    reward: Scoring | None = None
    search: str | Part | None = None
    axes: str | Sequence[str] | None = None
    judge: str | None = None
    judgements: int = 1
    credit: str | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int | None = None
    view: str | Part | None = None
    released: str | None = None
    episodes: int = 100
    video: str | None = None
    member: int = 0
    data: str | None = None
    gamma: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", (self.k,) if isinstance(self.k, int) else tuple(self.k))
        for name in ("problems", "episodes", "judgements"):
            check(name, Count, getattr(self, name))
        check("seed", WholeNumber, self.seed)
        check("temperature", NonNegative, self.temperature)
        if self.gamma is not None:
            check("gamma", Probability, self.gamma)


class WorldOf(Protocol):
    """What differs by world. Each file below this folder is one, function by function, for its own tasks and loops."""

    READS: frozenset[str]
    """Options of a run that mean something in it, besides those that every run reads."""
    EVALUATION_READS: frozenset[str]
    """Fields of `EvaluationOptions` that mean something in it."""
    EVALUATED: int | None
    """Problems per split before and after training where nothing else is said; None: as the run decides."""
    WORDING: Wording
    """How its runs are spoken of, on the terminal and in reports."""

    def measured(self, task: Task, options: Options | None = None) -> tuple[list[str], list[str]]:
        """Metrics and splits of an evaluation with these options; the first of each is what methods are compared by."""

    def curve(self, metric: str) -> tuple[str, str, str]:
        """A learning curve: the name in `metrics.jsonl`, what it is of in words, and what its axis counts."""

    def grid(self, budget: int) -> list[float]:
        """Where the learning curves of a comparison are read."""

    def budget(self, task: Task) -> int:
        """What a run takes where nothing else is said: training steps, or environment steps of each member."""

    def compared(self, task: Task) -> tuple[int, int]:
        """Seeds and budget of each arm of a comparison where nothing else is said."""

    def suited(self, method: Method, task: Task) -> tuple[Method, str]:
        """The method as what this task shows asks for, and a sentence about what was changed; '' for nothing."""

    def prepare(self, method: Method, task: Task, options: Options) -> None:
        """Do what may fail before anything is written or a large model loads."""

    def arguments(self, method: Method, task: Task, options: Options) -> dict[str, Any]:
        """What a loop is built from besides method, task and steps; also chooses the number of threads."""

    def begin(self, loop: Loop, options: Options) -> list[str]:
        """Give a loop at its first step what another run learned, if that was asked for; sentences about it."""

    def size(self, loop: Loop, method: Method, task: Task) -> str:
        """How much is trained, for people."""

    def rate(self, loop: Loop, method: Method) -> str:
        """The learning rate and its rule, a sentence, where neither user nor method chose one; else empty."""

    def evaluation(self, loop: Loop, task: Task, options: Options, when: str, known: Look | None = None) -> Measured:
        """What an evaluation 'before' or 'after' measured; what a look found at this step is not measured again."""

    def look(self, loop: Loop, task: Task, options: Options) -> Look:
        """What an evaluation in the middle of training measures: the means of `evaluation` on the first split."""

    def restore(self, checkpoint: str, config: Mapping[str, Any], task: Task) -> Any:
        """The policy of a checkpoint alone, without what trains it."""

    def evaluate(
        self, checkpoint: str, config: Mapping[str, Any], task: Task, options: EvaluationOptions
    ) -> dict[str, dict[str, Interval]]:
        """How good the policy of a checkpoint is: {split: {metric: Interval}}."""

    def about(self, options: EvaluationOptions) -> str:
        """What such an evaluation was made of, in a few words."""

    def export(self, checkpoint: str, config: Mapping[str, Any], out: Path, member: int, merge: bool) -> None:
        """Write a policy so that it runs without etude; with `merge`, an adapter folded into its base.

        Raises: ConfigError where there is no such member or adapter.
        """

    def preview(self, task: Task, split: str | None, count: int) -> Iterable[str]:
        """A task on the terminal, line by line: what is in it, and a few examples."""

    def suggestions(self, done: Result, method: str, config: Mapping[str, Any]) -> list[tuple[str, str]]:
        """What to type after a run that was evaluated, and what it is good for."""


def world_of(task: Task | World) -> WorldOf:
    """How runs of this task, or of tasks of this world, are made."""
    world = task if isinstance(task, World) else task.world
    return cast(WorldOf, importlib.import_module(f"etude.runs.worlds.{world}"))


def check_evaluation(options: EvaluationOptions, task: Task) -> None:
    """Raise ConfigError for an option that was given and that an evaluation on this task would not read."""
    for option in dataclasses.fields(options):
        if option.name not in world_of(task).EVALUATION_READS and getattr(options, option.name) != option.default:
            raise ConfigError(
                f"--{option.name.replace('_', '-')} means nothing for {task.id}, a task of {task.world}: leave it out."
            )


def parent(folder: Path, world: World, method: str) -> str | None:
    """The method that the one of a run is a difference of, where it is registered and trained in this world.

    Args:
        method: as it was named: of 'grpo+kl-to-reference' it is 'grpo'.
    """
    base, _, stacked = method.partition("+")
    if stacked:
        return base
    name: str | None = json.loads((folder / "method.json").read_text()).get("parent")
    known = name in files("methods") and any(world in m.worlds for m in compositions(name))
    return name if known else None
