"""What is wrong with a task, before a run: each thing in one sentence, as `check_environment` does for environments."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from etude.core.control import ControlTask
from etude.core.episodes import Episode, Problem, Segment
from etude.core.errors import EtudeError, UnknownNameError
from etude.core.task import Environment, LanguageTask, SingleTurn, StepResult, Task
from etude.evaluation.environment_findings import Finding
from etude.experience.worlds import worlds_of

if TYPE_CHECKING:
    pass

READ, PLAYED = 50, 5
"""Problems of a split that are read, and those of them that are scored and played."""
COMPLETIONS = ("", "yes", "42", "a b c\n")
"""What is scored."""


def check_task(task: str | Task) -> list[Finding]:
    """Look at problems, scores, demonstrations and the environment of a task; of control, at its environment.

    Args:
        task: as `--task` takes it, or a task.

    Returns: the findings, faults first.
    """
    from etude.evaluation.environment_check import check_environment
    from etude.tasks import resolve_task

    made = resolve_task(task) if isinstance(task, str) else task
    if isinstance(made, ControlTask):
        return check_environment(made)
    order = {"fault": 0, "warning": 1, "fact": 2}
    return sorted(dict.fromkeys(_task(made)), key=lambda f: order[f.level])


def _task(task: Task) -> Iterator[Finding]:
    try:
        splits = task.splits()
    except Exception as error:
        yield _fault("splits", f"splits() raised {_named(error)}.")
        return
    if not isinstance(splits, (tuple, list)) or not all(isinstance(split, str) for split in splits):
        yield _fault("splits", f"splits() must return a tuple of names, got {splits!r}.")
        return
    pools = {}
    for split in splits:
        try:
            pools[split] = task.problems(split)
        except Exception as error:
            yield _fault("splits", f"problems({split!r}) raised {_named(error)}, though splits() names it.")
    if "train" not in splits:
        yield _fault("splits", f"splits() must name 'train', which is learned from; it is {splits}.")
    yield from _unknown_split(task)
    ids: dict[str, str] = {}
    read: list[Finding] = []
    for split, pool in pools.items():
        wrong = list(_pool(split, pool, ids))
        read += wrong
        yield from wrong
        if isinstance(task, LanguageTask) and not any(f.level == "fault" for f in wrong):
            yield from _language(task, split, [pool[i] for i in range(min(len(pool), PLAYED))])
    if not any(f.level == "fault" for f in read):
        yield from _leaks(pools)
        if isinstance(task, LanguageTask) and (sentence := task.needs_reward()):
            yield Finding("warning", "score", f"Nothing was scored. {sentence}")


def _fault(about: str, sentence: str) -> Finding:
    return Finding("fault", about, sentence)


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _unknown_split(task: Task) -> Iterator[Finding]:
    try:
        task.problems("no such split")
    except UnknownNameError:
        return
    except Exception as error:
        yield Finding("warning", "splits", f"An unknown split raises {_named(error)}; raise UnknownNameError instead.")
        return
    yield Finding(
        "warning", "splits", "An unknown split gives problems as if it were there; raise UnknownNameError for it."
    )


def _pool(split: str, pool: Sequence[Problem], ids: dict[str, str]) -> Iterator[Finding]:
    """Indexable, with a length; the same problem each time; ids that no other problem of any split has."""
    try:
        size = len(pool)
        problems = [pool[i] for i in range(min(size, READ))]
    except Exception as error:
        yield _fault("problems", f"The split {split!r} must have a length and an index: {_named(error)}.")
        return
    if not problems:
        yield _fault("problems", f"The split {split!r} has no problems.")
    for i, problem in enumerate(problems):
        where = f"Problem {i} of {split!r}"
        if not isinstance(problem, Problem):
            yield _fault("problems", f"{where} must be a Problem, got {type(problem).__name__}.")
            return
        if (other := ids.setdefault(problem.id, f"problem {i} of {split!r}")) != f"problem {i} of {split!r}":
            yield _fault("problems", f"{where} has the id {problem.id!r} of {other}: ids key splits and resuming.")
            return
        if pool[i] != problem:
            yield _fault("problems", f"{where} is another one when it is asked for again: draw it from Stream(seed).")
            return
    if problems:
        yield Finding("fact", "problems", f"{split}: {size:,} problems, the first {problems[0].id!r}.")


def _leaks(pools: Mapping[str, Sequence[Problem]]) -> Iterator[Finding]:
    """Prompts that are trained on and stand in another split as well, among the problems that are read."""
    train = pools.get("train", ())
    learned = {str(train[i].prompt): train[i].id for i in range(min(len(train), READ))}
    for split in (name for name in pools if name != "train"):
        problems = (pools[split][i] for i in range(min(len(pools[split]), READ)))
        if same := next((p for p in problems if str(p.prompt) in learned), None):
            yield Finding(
                "warning", "splits",
                f"{same.id!r} of {split!r} has the prompt of {learned[str(same.prompt)]!r} of 'train': what is "
                "measured there was learned by heart.",
            )  # fmt: skip


def _language(task: LanguageTask, split: str, problems: Sequence[Problem]) -> Iterator[Finding]:
    """Prompts, scores, worked answers and the environment of a few problems."""
    try:
        single = isinstance(task.played_in(), SingleTurn)
    except Exception as error:
        yield _fault("environment", f"environment() raised {_named(error)}.")
        return
    scored = single and task.needs_reward() is None and not task.judged_by_reward
    wrong: list[Finding] = []
    for problem in problems:
        yield from _prompt(problem)
        if scored:
            wrong += _scores(task, problem)
        if not single or task.needs_reward() is None:
            yield from _environment(task, problem)
    if task.workers and problems:
        yield from _elsewhere(task, problems[0])
    yield from wrong
    if scored and problems and not wrong:
        shown = sum(task.demonstration(problem) is not None for problem in problems)
        yield Finding(
            "fact", "score",
            f"{split}: {len(problems)} problems were scored, of which {shown} have a demonstration that solves them.",
        )  # fmt: skip


def _prompt(problem: Problem) -> Iterator[Finding]:
    prompt = problem.prompt
    if isinstance(prompt, str):
        if not prompt:
            yield Finding("warning", "prompts", f"The prompt of {problem.id!r} is empty.")
        return
    messages = list(prompt) if isinstance(prompt, Sequence) else []
    if not messages or not all(isinstance(m, Mapping) and {"role", "content"} <= set(m) for m in messages):
        yield _fault(
            "prompts",
            f"The prompt of {problem.id!r} must be text, or messages with role and content; got {prompt!r}.",
        )  # fmt: skip


def _scores(task: LanguageTask, problem: Problem) -> Iterator[Finding]:
    """Finite, the same each time, and a demonstration counts as solved."""
    for text in COMPLETIONS:
        try:
            first, second = task.score(problem, text), task.score(problem, text)
        except Exception as error:
            yield _fault("score", f"score raised {_named(error)} for the completion {text!r} of {problem.id!r}.")
            return
        if not isinstance(first, (int, float)) or not math.isfinite(first):
            yield _fault("score", f"score must return a finite number, got {first!r} for {text!r} of {problem.id!r}.")
            return
        if first != second:
            yield _fault("score", f"score gives {text!r} {first} and then {second}: it must not depend on chance.")
            return
    try:
        worked = task.demonstration(problem)
        if worked is None:
            return
        earned = task.score(problem, worked)
        solved = task.success(Episode(problem, [Segment("assistant", worked, reward=earned)]))
    except Exception as error:
        yield _fault("demonstration", f"The demonstration of {problem.id!r} raised {_named(error)}.")
        return
    if task.shows_how and not solved:
        yield _fault(
            "demonstration",
            f"The demonstration of {problem.id!r} scores {earned}, which is no success: {worked!r}.",
        )  # fmt: skip


def _environment(task: LanguageTask, problem: Problem) -> Iterator[Finding]:
    """reset, and what follows it."""
    try:
        environment = task.played_in()
        shown = environment.reset(problem, 0)
    except Exception as error:
        yield _fault("environment", f"reset raised {_named(error)} for {problem.id!r}.")
        return
    if wrong := _segments(shown):
        yield _fault("environment", f"reset must return a list of segments, got {wrong}.")
        return
    if not shown:
        yield _fault("environment", "reset must return at least one segment: the policy has to be shown something.")
        return
    yield from _played(task, problem, environment, shown)


def _elsewhere(task: LanguageTask, problem: Problem) -> Iterator[Finding]:
    """Whether a worker process can make the task's environments, and shows what this one does."""
    episode = Episode(problem)
    try:
        with worlds_of(task, [episode]) as worlds:
            (answer,) = worlds.reset([0])
        here = task.played_in().reset(problem, episode.seed)
    except Exception as error:
        yield _fault("workers", str(error) if isinstance(error, EtudeError) else f"reset raised {_named(error)}.")
        return
    if answer.fault or [s.text for s in answer.returned] != [s.text for s in here]:
        shown = answer.fault or [s.text for s in answer.returned]
        yield _fault("workers", f"For {problem.id!r} a worker process comes to {shown}, and this one does not.")
        return
    yield Finding("fact", "workers", f"Environments are stepped in {task.workers} processes of their own.")


def _played(task: LanguageTask, problem: Problem, environment: Any, shown: Sequence[Segment]) -> Iterator[Finding]:
    """A step, the same again from a snapshot and in another environment, and steps to the end."""
    saves = hasattr(environment, "snapshot") and hasattr(environment, "restore")
    saved = deepcopy(environment.snapshot()) if saves else None
    first = _step(environment)
    if isinstance(first, str):
        yield _fault("environment", f"step {first} for {problem.id!r}.")
        return
    if saves:
        environment.restore(saved)
        if _outcome(again := _step(environment)) != _outcome(first):
            yield _fault("environment", f"After restore(snapshot()) step gives {again}, and gave {first} before.")
    other = task.played_in()
    if [s.text for s in other.reset(problem, 0)] != [s.text for s in shown]:
        yield _fault("environment", "reset shows something else for the same problem and seed: draw from the seed.")
        return
    if _outcome(_step(other)) != _outcome(first):
        yield _fault("environment", "The same completion after the same reset has another outcome.")
        return
    turn, answer = 1, first
    while turn < task.max_turns and not (answer.terminated or answer.truncated):
        turn, step = turn + 1, _step(other)
        if isinstance(step, str):
            yield _fault("environment", f"step {step} in turn {turn} of {problem.id!r}.")
            return
        answer = step


def _step(environment: Environment) -> StepResult | str:
    """What a step answers to a completion, or what is wrong with it."""
    try:
        answer = environment.step(Segment("assistant", "yes", [1], [1], [0.0]))
    except Exception as error:
        return f"raised {_named(error)}"
    if not isinstance(answer, StepResult):
        return f"must return a StepResult, got {type(answer).__name__}"
    if wrong := _segments(answer.segments):
        return f"must answer with a list of segments, got {wrong}"
    if not isinstance(answer.reward, (int, float)) or not math.isfinite(answer.reward):
        return f"must pay a finite reward, got {answer.reward!r}"
    if not (isinstance(answer.terminated, bool) and isinstance(answer.truncated, bool)):
        return "must say terminated and truncated as True or False"
    return answer


def _segments(returned: object) -> str | None:
    """What was returned instead of a list of segments."""
    if not isinstance(returned, (list, tuple)):
        return type(returned).__name__
    return next((f"a {type(s).__name__} among them" for s in returned if not isinstance(s, Segment)), None)


def _outcome(answer: StepResult | str) -> Any:
    if isinstance(answer, str):
        return answer
    return [s.text for s in answer.segments], answer.reward, answer.terminated, answer.truncated
