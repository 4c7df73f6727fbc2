"""Runs of recipes: each run of the chain is an ordinary run, in a folder of its own below the recipe's.

The recipe's folder is a run's as well: its logs are those of its runs that are on its own task, one after the other,
its checkpoints what they ended with, and its evaluation is before the first and after the last of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from etude.core.errors import ConfigError, EtudeError
from etude.core.fit import check
from etude.core.loop import Loop
from etude.core.method import Method
from etude.core.recipe import NAMED, Link, Planned, Recipe
from etude.core.task import Task
from etude.runs.chain import Chain
from etude.runs.kinds import MAKING, RunOfKind, run_of
from etude.runs.training import EVERYWHERE, Options, Result, compose_method, compose_task, of, of_method, say
from etude.runs.warm import unlike
from etude.runs.worlds import world_of
from etude.runtime.folder import RunFolder
from etude.runtime.interrupts import Interrupted
from etude.runtime.sources import Inputs, record
from etude.stages.chain import Collect, Combine, Derive, DeriveByPolicy, Train

SEEDS_APART = 1_000_000
"""Between the seeds of two runs of a chain."""
OWN = frozenset({"model", "steps", "seed", "after", "anew", "out", "until", "preset", "callbacks"})
"""Options that a run of a chain has from its place in it."""
EVALUATED = frozenset({
    "evaluate", "evaluate_every", "evaluate_samples", "evaluate_split", "evaluate_temperature", "evaluate_judge",
})  # fmt: skip


@dataclass(frozen=True)
class Composed:
    """A run of a chain, made of what it names: its method and task, as far as they are known before it begins.

    Args:
        method: None for what trains nothing.
        task: None where it is the data that a run before makes.
    """

    method: Method | None
    task: Task | None


class RecipeRun(RunOfKind[Recipe, Loop]):
    """A run of a `Recipe`."""

    READS: ClassVar[frozenset[str]] = MAKING | {"micro_tokens"}
    LEAVES: ClassVar[frozenset[str]] = frozenset({"after", "anew", "stop_when", "minutes", "keep_best"})
    extends: ClassVar[bool] = False

    def check(self, method: Recipe, task: Task) -> None:
        """Raises ConfigError for a run whose method, task or fields cannot be."""
        made: dict[str, Composed] = {}
        for link in method.runs:
            one = made[link.called] = composed(link, task)
            if one.method is not None and one.task is not None:
                check(one.method, one.task)
                run_of(one.method).check(one.method, one.task)
        for run in method.plan():
            _can_begin(run, made, {run.number: run.link for run in method.plan()})

    def budget(self, method: Recipe, task: Task) -> int:
        """The steps of all runs and rounds."""
        return method.budget

    def suited(self, method: Recipe, task: Task) -> tuple[Recipe, str]:
        """As it is: what a task asks for is asked of each run."""
        return method, ""

    def ready(self, method: Recipe, task: Task, options: Options) -> None:
        """What depends on a world is done for each run in its own."""
        self.prepare(method, task, options)

    def prepare(self, method: Recipe, task: Task, options: Options) -> None:
        """Do for each run what may fail before anything is written."""
        from etude.runs.session import prepare

        every, shares = options.evaluate_every, divided(method, options.steps or method.budget)
        for run in method.plan():
            steps = shares[run.number - 1]
            looks = every if every is not None and every < sum(shares) else steps  # else before and after alone
            if looks and steps % looks and not run.link.task:
                raise ConfigError(
                    f"The run {run.link.called} takes {steps} steps, which --evaluate-every {every} does not divide: "
                    "evaluations of a recipe are every so many steps of all its runs."
                )
            one = composed(run.link, task)
            if one.method is None and one.task is not None:
                one.task.problems(getattr(run.link, "split", "train"))
            if one.method is not None and one.task is not None and run.round == 1 and not run.link.takes():
                prepare(one.method, one.task, dataclasses.replace(_options(options, one), steps=steps))

    def acts(self, method: Recipe) -> bool:
        """Whether its last policy acts."""
        return True

    def session(
        self, folder: RunFolder, method: Recipe, task: Task, options: Options, called: Sequence[Any],
        inputs: Callable[[], Inputs] | None,
    ) -> Result:  # fmt: skip
        """Do the runs that are not done yet, one after another."""
        if str(folder.config["task"]).startswith("<"):
            raise ConfigError(
                f"The runs of a recipe are begun by name, and the task {folder.config['task']} only lives in Python: "
                "put it in a file and name it as file.py:name."
            )
        if inputs is not None:
            record(folder.path, inputs())
        assert options.steps is not None
        plan, shares = method.plan(), divided(method, options.steps)
        chain = Chain(folder, plan, options)
        for run, steps in zip(plan, shares):
            if run.number <= chain.done:
                continue
            say(f"Run {run.number} of {len(plan)}: {_told(run, steps)}.", options.quiet)
            with _explained(run, len(plan), folder):
                whole = self._do(chain, run, steps, task, options, called, sum(shares[: run.number - 1]))
            if not whole:
                return chain.result(method, task, f"It was to stop in the run {run.link.called}.")
        return chain.finish(method, task)

    def _do(
        self, chain: Chain, run: Planned, steps: int, task: Task, options: Options, called: Sequence[Any], begun: int
    ) -> bool:  # fmt: skip
        """Do one run, or what is left of it; whether it came to its end."""
        if isinstance(run.link, (Collect, Derive, DeriveByPolicy)):
            one = self._filled(chain, run, task)
            assert one.task is not None
            chain.collect(run, _begins(chain, run, options), one.task)
            return True
        if isinstance(run.link, Combine):
            one = self._filled(chain, run, task)
            assert one.task is not None
            chain.combine(run, _begins(chain, run, options), one.task)
            return True
        left = None if options.until is None else options.until - begun
        if left is not None and left <= 0:
            return False
        one = self._filled(chain, run, task)
        base = chain.budget_of(run.begins) if run.link.keeps and run.begins is not None else 0
        until = None if left is None or left >= steps else base + left
        assert one.method is not None
        told = self._given(chain, run, one, options) | {"steps": base + steps, "until": until}
        result = chain.train(run, told, called)
        if until is not None:
            return False
        chain.publish(run, result, own=not run.link.task and run_of(one.method).acts(one.method))
        return True

    def _filled(self, chain: Chain, run: Planned, task: Task) -> Composed:
        """The run with what it is handed."""
        made = {name: chain.made(number) for name, number in run.handed.items()}
        filled = run.link.replace(task=_put(run.link.task, made), set=tuple(_put(f, made) for f in run.link.set))
        return composed(filled, task)

    def _given(self, chain: Chain, run: Planned, one: Composed, options: Options) -> dict[str, Any]:
        """What `etude.train` is told of this run."""
        assert one.method is not None and one.task is not None and isinstance(run.link, Train)
        name, *parts = run.link.method.split("+")
        own = _options(options, one)
        usual = {f.name: f.default for f in dataclasses.fields(Options)}
        values = {k: getattr(own, k) for k in usual if k not in OWN and getattr(own, k) != usual[k]}
        if not run_of(one.method).acts(one.method):
            values = {k: v for k, v in values.items() if k not in EVALUATED}
        config = chain.folder.config
        made = {n: chain.made(number) for n, number in run.handed.items()}
        told = {
            "method": name, "with_": parts, "task": _put(run.link.task, made) or config["task"],
            "set": [*([] if run.link.task else config["task_fields"]), *(_put(f, made) for f in run.link.set)],
            "preset": False, "quiet": options.quiet,
        }  # fmt: skip
        return told | values | self._beginning(chain, run, options, one.method)

    def _beginning(self, chain: Chain, run: Planned, options: Options, method: Method) -> dict[str, Any]:
        """What a run begins from, and the seed of its random numbers."""
        seed = {"seed": options.seed + SEEDS_APART * (run.number - 1)}
        if run.begins is None:
            return {**seed, **({} if options.model == Options.model else {"model": options.model})}
        before = str(chain.place(run.begins))
        if not run.link.keeps:
            return {**seed, "model": before}
        return {"after": before, "anew": _anew(run.link, method)}


def composed(link: Link, task: Task) -> Composed:
    """A run of a chain, made of what it names.

    Raises: EtudeError, with its name before the sentence, for a method, a task or a field that there is not.
    """
    try:
        known = [c for c in of("task", link.set) if not NAMED.search(c)]  # what a run makes is not there yet
        own = None if NAMED.search(link.task) else compose_task(link.task or task, known)
        if not isinstance(link, Train):
            return Composed(None, own)
        name, *parts = link.method.split("+")
        world = next(iter(sorted(link.worlds_of()))) if own is None else own.world
        return Composed(compose_method(name, of_method(link.set), parts, world=world), own)
    except EtudeError as error:
        error.args = (f"The run {link.called}: {error}", *error.args[1:])
        raise


def divided(recipe: Recipe, steps: int) -> list[int]:
    """The steps of each run, all rounds: `steps` divided as those of the recipe are.

    Raises: ConfigError if one that trains would have none.

    >>> from etude.core.registry import get_method
    >>> divided(get_method("sft-then-grpo"), 30)
    [10, 20]
    """
    budgets = [run.link.budget for run in recipe.plan()]
    ends = [round(sum(budgets[: i + 1]) * steps / max(1, recipe.budget)) for i in range(len(budgets))]
    shares = [end - begun for begun, end in zip([0, *ends], ends)]
    for run, share in zip(recipe.plan(), shares):
        if run.link.budget and share < 1:
            raise ConfigError(f"Of {steps} steps the run {run.link.called} would have none: give the recipe more.")
    return shares


def _can_begin(run: Planned, made: Mapping[str, Composed], links: Mapping[int, Link]) -> None:
    """Raise ConfigError for a run that begins from one whose policy it cannot begin from."""
    now = made[run.link.called]
    if run.begins is None or now.method is None:
        return
    name = links[run.begins].called
    before = made[name]
    if before.method is None:
        if run.link.keeps:
            raise ConfigError(
                f"The run {run.link.called} keeps what {name} has none of, which only puts policies together: reset it."
            )
        return
    if not run_of(before.method).acts(before.method) and run_of(now.method).acts(now.method):
        raise ConfigError(
            f"The run {run.link.called} begins from {name}, which trains what does not act: say which policy it "
            "begins from (begins='start', or the name of a run)."
        )
    if run.link.keeps and (sentence := next(_cannot_keep(run.link, now.method, before.method), None)):
        raise ConfigError(f"The run {run.link.called} cannot go on after {name}: {sentence}")
    worlds = [one.task.world for one in (before, now) if one.task is not None]
    if len(set(worlds)) > 1:
        raise ConfigError(
            f"The run {run.link.called} is one of {worlds[1]} and begins from {name}, one of {worlds[0]}: a policy of "
            "the one cannot begin the other; say begins='start'."
        )


def _begins(chain: Chain, run: Planned, options: Options) -> str:
    """What a run that trains nothing begins from: a run's folder, or what the recipe began from."""
    return options.model if run.begins is None else str(chain.place(run.begins))


def _anew(link: Link, method: Method) -> list[str]:
    """What begins anew although something else is kept."""
    return [slot for slot in ("optimizer", "reference") if slot not in link.keeps and slot in method.slots()]


def _cannot_keep(link: Link, method: Method, before: Method) -> Iterator[str]:
    """Why a run cannot keep what it is to keep, as sentences."""
    if "reference" in link.keeps and "reference" not in method.slots():
        yield f"a {type(method).__name__} has no reference: keep the optimizer alone."
    yield from unlike(method, before, _anew(link, method))


def _options(options: Options, one: Composed) -> Options:
    """The recipe's options, those that a run of this method on this task has no use for at their default."""
    assert one.method is not None and one.task is not None
    read = EVERYWHERE | (world_of(one.task).READS & run_of(one.method).READS)
    if not run_of(one.method).acts(one.method):
        read -= {"evaluate_every"}
    left: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(Options) if f.name not in read}
    return dataclasses.replace(options, **left)


def _put(text: str, made: Mapping[str, str]) -> str:
    """The text with what runs made in the place of their names."""
    return NAMED.sub(lambda match: made[match[1]], text)


def _told(run: Planned, steps: int) -> str:
    what = f"{run.link.method}, {steps:,} steps" if isinstance(run.link, Train) else "data to hand on"
    return f"{run.link.called}, {what}" + (f", round {run.round}" if run.round > 1 else "")


class _explained:
    """Say of what stops a run which one of the chain it was, and how to go on with all of them."""

    def __init__(self, run: Planned, count: int, folder: RunFolder) -> None:
        self.sentence = (
            f"It is run {run.number} of {count} of {folder.path}; go on with all of them: {folder.resume_command}"
        )

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Interrupted):
            raise Interrupted(f"{error} {self.sentence}", error.exit_code - 128, error.result) from None
        if isinstance(error, EtudeError) and not isinstance(error, ImportError):
            error.args = (f"{error} {self.sentence}", *error.args[1:])
