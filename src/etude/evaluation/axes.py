"""What a policy lacks: how much a plan, knowledge, or one small question after another help it (arXiv:2506.04723).

A problem says in its `info` what can be shown of it: `plan` and `knowledge` as text, or lists of texts, `subproblems`
as a list of `{"prompt": ..., "answer": ...}` in their order. Data files have columns of these names.

    gain of a plan        right with the plan in view - right without, problem by problem; of knowledge the same
    subproblems           share of problems of which every question is answered rightly, each asked with the questions
                          before it and their right answers in view
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from etude.core.episodes import Message, Problem
from etude.core.errors import ConfigError, DataError, UnknownNameError
from etude.core.task import LanguageTask
from etude.evaluation.intervals import Interval
from etude.evaluation.language import evaluate_problems
from etude.evaluation.pass_at_k import over_problems

if TYPE_CHECKING:
    from etude.experience.groups import Groups
    from etude.policies.language import LanguagePolicy

SHOWN = ("plan", "knowledge")
AXES = (*SHOWN, "subproblems")


@dataclass
class AxesEvaluation:
    """What was right on one split, problem by problem.

    Shapes: plain, and `shown` by axis, [problems] shares of samples; `chained` [problems] the share of rounds in which
    every question was answered rightly; None: it was not asked.
    """

    split: str
    plain: NDArray[np.float64]
    shown: dict[str, NDArray[np.float64]]
    chained: NDArray[np.float64] | None
    levels: list[str]

    def summary(self) -> dict[str, Interval]:
        """Shares and paired differences to the plain problem, by level too where there are several."""
        found: dict[str, Interval] = {"right": over_problems(self.plain)}
        for axis, right in self.shown.items():
            found |= {f"{axis}/right": over_problems(right)} | self._gains(axis, right)
        if self.chained is not None:
            found |= {"subproblems/right": over_problems(self.chained)} | self._gains("subproblems", self.chained)
        return found

    def _gains(self, axis: str, right: NDArray[np.float64]) -> dict[str, Interval]:
        gain, levels = right - self.plain, sorted({*self.levels})
        found: dict[str, Interval] = {f"{axis}/gain": over_problems(gain)}
        for level in levels if len(levels) > 1 else ():
            found[f"{axis}/gain/{level}"] = over_problems(gain[[own == level for own in self.levels]])
        return found


def evaluate_axes(
    policy: LanguagePolicy, task: LanguageTask, split: str, axes: Sequence[str] = AXES, *, problems: int = 100,
    samples: int = 8, seed: int = 0, experience: Groups | None = None, temperature: float | None = None,
) -> AxesEvaluation:  # fmt: skip
    """Each problem plain and along these axes, with the same random numbers, so that differences are paired.

    Raises: UnknownNameError for another axis; DataError for a problem that has nothing to show; ConfigError for a task
    of several turns, or one whose answers only a reward can judge.
    """
    check_axes(axes, task)
    pool = task.problems(split)
    chosen = [pool[i] for i in range(min(problems, len(pool)))]
    wanted = {axis: [_needed(problem, axis) for problem in chosen] for axis in axes}

    def right(asked: Sequence[Problem]) -> NDArray[np.float64]:
        found = evaluate_problems(
            policy, task, asked, split, samples=samples, seed=seed, experience=experience, temperature=temperature
        )
        return found.correct.astype(float)

    plain = right(chosen).mean(1)
    shown = {
        axis: right([replace(p, prompt=led(p.prompt, said)) for p, said in zip(chosen, wanted[axis])]).mean(1)
        for axis in axes if axis in SHOWN
    }  # fmt: skip
    chained = None
    if "subproblems" in axes:
        steps = [step_by_step(p) for p in chosen]
        rows = right([step for each in steps for step in each])
        ends = np.cumsum([len(each) for each in steps])
        chained = np.array([chain_success(rows[end - len(each) : end]) for each, end in zip(steps, ends)])
    return AxesEvaluation(split, plain, shown, chained, [p.level for p in chosen])


def check_axes(axes: Sequence[str], task: LanguageTask) -> None:
    """Raise UnknownNameError for an axis that there is not, ConfigError for a task that has none."""
    if not axes:
        raise ConfigError(f"axes must name one or more of {', '.join(AXES)}, got none.")
    for axis in axes:
        if axis not in AXES:
            raise UnknownNameError("axis", axis, AXES)
    if task.max_turns > 1:
        raise ConfigError(
            f"Axes are shown in a prompt, and {task.id} has up to {task.max_turns} turns: leave them out."
        )
    if task.judged_by_reward:
        raise ConfigError(f"{task.id} has no answers, so nothing says what is right along an axis: leave them out.")


def chain_success(right: NDArray[Any]) -> float:
    """Of right [questions, samples], the share of samples in which all questions of a problem are answered rightly.

    Of independent questions its expectation is the product of theirs, so at most the smallest.

    >>> chain_success(np.array([[1, 1, 0, 1], [1, 0, 0, 1]]))
    0.5
    """
    return float(np.all(right > 0, axis=0).mean())


def step_by_step(problem: Problem) -> list[Problem]:
    """Its questions as problems, each with those before it and their right answers in view.

    >>> steps = [{"prompt": "1+2=", "answer": "3"}, {"prompt": "3+4=", "answer": "7"}]
    >>> [p.prompt for p in step_by_step(Problem("a", "1+2+4=", info={"subproblems": steps}))]
    ['1+2=', '1+2=3\\n3+4=']
    """
    found, before = list[Problem](), ""
    for number, step in enumerate(problem.info["subproblems"], 1):
        text = f"{before}{step['prompt']}"
        prompt: str | list[Message] = text
        if not isinstance(problem.prompt, str):
            prompt = [*problem.prompt[:-1], {**problem.prompt[-1], "content": text}]
        name = f"{problem.id}/{number}"
        found.append(replace(problem, id=name, prompt=prompt, answer=step["answer"]))
        before = f"{text}{step['answer']}\n"
    return found


def led(prompt: str | Sequence[Message], said: object) -> str | Sequence[Message]:
    """A prompt with text before it, in a conversation before the last message.

    >>> led("1+2=", "2 is even"), led([{"role": "user", "content": "1+2="}], ["a", "b"])
    ('2 is even\\n1+2=', [{'role': 'user', 'content': 'a\\nb\\n1+2='}])
    """
    text = said if isinstance(said, str) else "\n".join(map(str, said))  # type: ignore[call-overload]
    if isinstance(prompt, str):
        return f"{text}\n{prompt}"
    last = prompt[-1]
    return [*prompt[:-1], {**last, "content": f"{text}\n{last['content']}"}]


def _needed(problem: Problem, axis: str) -> object:
    found = problem.info.get(axis)
    if not found:
        raise DataError(
            f"Problem {problem.id!r} has no {axis} to show: give data files a column of that name, and problems of a "
            "task of your own the same in their info."
        )
    return found
