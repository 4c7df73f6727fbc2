"""What is wrong with a task, before a run: each thing in one sentence, as `check_environment` does for environments."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from etude.core.control import ControlTask
from etude.core.episodes import Problem, Segment
from etude.core.errors import UnknownNameError
from etude.core.task import Environment, LanguageTask, SingleTurn, StepResult, Task
from etude.evaluation.environment_findings import Finding

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

LOOKED = 50
"""Problems of a split that are looked at."""
SAID = ("", "yes", "42", "a b c\n")
"""Completions that are scored."""


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
    found = list(_task(made))
    order = {"fault": 0, "warning": 1, "fact": 2}
    return sorted(dict.fromkeys(found), key=lambda f: order[f.level])


def _task(task: Task) -> Iterator[Finding]:
    pools = {}
    for split in task.splits():
        try:
            pools[split] = task.problems(split)
        except Exception as error:
            yield _fault("splits", f"problems({split!r}) raised {_said(error)}, though splits() names it.")
    if "train" not in task.splits():
        yield _fault("splits", f"splits() must name 'train', which is learned from; it is {task.splits()}.")
    yield from _unknown_split(task)
    ids: dict[str, str] = {}
    for split, pool in pools.items():
        wrong = list(_pool(split, pool, ids))
        yield from wrong
        if isinstance(task, LanguageTask) and not any(f.level == "fault" for f in wrong):
            yield from _language(task, [pool[i] for i in range(min(len(pool), LOOKED // 10))])


def _fault(about: str, sentence: str) -> Finding:
    return Finding("fault", about, sentence)


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _unknown_split(task: Task) -> Iterator[Finding]:
    try:
        task.problems("no such split")
    except UnknownNameError:
        return
    except Exception as error:
        yield Finding("warning", "splits", f"An unknown split raises {_said(error)}; raise UnknownNameError instead.")
        return
    yield Finding(
        "warning", "splits", "An unknown split gives problems as if it were there; raise UnknownNameError for it."
    )


def _pool(split: str, pool: Sequence[Problem], ids: dict[str, str]) -> Iterator[Finding]:
    """Indexable, with a length; the same problem each time; ids that no other problem of any split has."""
    try:
        size = len(pool)
        problems = [pool[i] for i in range(min(size, LOOKED))]
    except Exception as error:
        yield _fault("problems", f"The split {split!r} must have a length and an index: {_said(error)}.")
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


def _language(task: LanguageTask, problems: Sequence[Problem]) -> Iterator[Finding]:
    from etude.policies.byte_tokenizer import build_tokenizer

    tokenizer = build_tokenizer(1024)
    for problem in problems:
        yield from _prompt(problem, tokenizer)
        single = isinstance(task.environment(), SingleTurn)
        if single and task.needs_reward() is None and not task.judged_by_reward:
            yield from _scores(task, problem)
        yield from _environment(task, problem)


def _prompt(problem: Problem, tokenizer: PreTrainedTokenizerFast) -> Iterator[Finding]:
    prompt = problem.prompt
    if not isinstance(prompt, str):
        if not all(isinstance(m, dict) and {"role", "content"} <= set(m) for m in prompt):
            yield _fault("prompts", f"The prompt of {problem.id!r} must be text or messages with role and content.")
        return
    if not prompt:
        yield Finding("warning", "prompts", f"The prompt of {problem.id!r} is empty.")
    elif not tokenizer.encode(prompt):
        yield _fault("prompts", f"The prompt of {problem.id!r} has no tokens.")


def _scores(task: LanguageTask, problem: Problem) -> Iterator[Finding]:
    """Finite, the same each time, and a demonstration scores as solved."""
    for text in SAID:
        try:
            first, second = task.score(problem, text), task.score(problem, text)
        except Exception as error:
            yield _fault("score", f"score raised {_said(error)} for the completion {text!r} of {problem.id!r}.")
            return
        if not isinstance(first, (int, float)) or not math.isfinite(first):
            yield _fault("score", f"score must return a finite number, got {first!r} for {text!r} of {problem.id!r}.")
            return
        if first != second:
            yield _fault("score", f"score gives {text!r} {first} and then {second}: it must not depend on chance.")
            return
    worked = task.demonstration(problem)
    if worked is not None and (earned := task.score(problem, worked)) < 1.0:
        yield _fault(
            "demonstration",
            f"The demonstration of {problem.id!r} scores {earned}, and a solved problem at least 1: {worked!r}.",
        )  # fmt: skip


def _environment(task: LanguageTask, problem: Problem) -> Iterator[Finding]:
    """reset, step, and where there are any snapshot and restore."""
    environment = task.environment()
    try:
        shown = environment.reset(problem, 0)
    except Exception as error:
        yield _fault("environment", f"reset raised {_said(error)} for {problem.id!r}.")
        return
    if wrong := _segments(shown):
        yield _fault("environment", f"reset must return a list of segments, got {wrong}.")
        return
    if not shown:
        yield _fault("environment", "reset must return at least one segment: the policy has to be shown something.")
        return
    saved = deepcopy(environment.snapshot()) if hasattr(environment, "snapshot") else None
    first = _step(environment)
    if isinstance(first, str):
        yield _fault("environment", f"step {first} for {problem.id!r}.")
        return
    if saved is not None and hasattr(environment, "restore"):
        environment.restore(saved)
        if _outcome(again := _step(environment)) != _outcome(first):
            yield _fault("environment", f"After restore(snapshot()) step gives {again}, and gave {first} before.")
    fresh = task.environment()
    if [s.text for s in fresh.reset(problem, 0)] != [s.text for s in shown]:
        yield _fault("environment", "reset shows something else for the same problem and seed: draw from the seed.")
    elif _outcome(_step(fresh)) != _outcome(first):
        yield _fault("environment", "The same completion after the same reset has another outcome.")


def _step(environment: Environment) -> StepResult | str:
    """What a step answers to a completion, or what is wrong with it."""
    try:
        answer = environment.step(Segment("assistant", "yes", [1], [1], [0.0]))
    except Exception as error:
        return f"raised {_said(error)}"
    if not isinstance(answer, StepResult):
        return f"must return a StepResult, got {type(answer).__name__}"
    if wrong := _segments(answer.segments):
        return f"must answer with a list of segments, got {wrong}"
    if not isinstance(answer.reward, (int, float)) or not math.isfinite(answer.reward):
        return f"must pay a finite reward, got {answer.reward!r}"
    if not (isinstance(answer.terminated, bool) and isinstance(answer.truncated, bool)):
        return "must say terminated and truncated as True or False"
    return answer


def _segments(found: object) -> str | None:
    """What was returned instead of a list of segments."""
    if not isinstance(found, (list, tuple)):
        return type(found).__name__
    return next((f"a {type(s).__name__} among them" for s in found if not isinstance(s, Segment)), None)


def _outcome(answer: StepResult | str) -> Any:
    if isinstance(answer, str):
        return answer
    return [s.text for s in answer.segments], answer.reward, answer.terminated, answer.truncated
