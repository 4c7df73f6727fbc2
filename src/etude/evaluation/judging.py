"""How well a policy judges, and what that is worth: its own solutions, and ones with a known first wrong step.

A judge sees a problem and numbered steps, and says which is the first wrong one, or -1 (ProcessBench,
arXiv:2412.06559). Of a solution of its own that it accepts it says that it is right: of k solutions the one that is
accepted most often is Self-PRM's answer (arXiv:2505.11227), of equals one with the commonest result, of these the
likeliest. With `self-ref` it writes a solution of its own first, and has it in view.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from etude.core.episodes import Message, Problem
from etude.core.errors import ConfigError, DataError
from etude.core.task import LanguageTask
from etude.evaluation.intervals import Interval, bootstrap_interval
from etude.evaluation.language import Evaluation, evaluate_problems
from etude.evaluation.pass_at_k import over_problems, summary
from etude.tasks.language.answers import stated_answer

if TYPE_CHECKING:
    from etude.experience.groups import Groups
    from etude.policies.language import LanguagePolicy

Judging = Literal["plain", "self-ref"]
JUDGINGS: tuple[Judging, ...] = ("plain", "self-ref")
ASKED = "{problem}\n{steps}\nThe first wrong step, or -1:"
REFERENCE = "A solution: {reference}\n"
ACCEPTED = -1


GIVEN = ("judge/f1", "judge/exact/wrong", "judge/exact/right", "judge/chi-square")
"""What is measured of given solutions; the shares only where there are such."""


@dataclass
class JudgedGiven:
    """Given solutions of one split as they were judged.

    Shapes: labels, said [given] the first wrong step of given solutions, -1 for none, and the judge's word (None: it
    said no number); solved [given] whether the policy's first own solution of the problem is right.
    """

    split: str
    labels: list[int]
    said: list[int | None]
    solved: NDArray[np.bool_]

    def of_given(self) -> dict[str, Interval]:
        """F1 of the first wrong step, its two shares, and whether judging goes with solving."""
        right = np.array([a == b for a, b in zip(self.labels, self.said)])
        wrong = np.array(self.labels) != ACCEPTED
        codes = 2 * wrong + right
        found: dict[str, Interval] = {"judge/f1": bootstrap_interval(codes, f1_of_codes)}
        for name, rows in {"wrong": wrong, "right": ~wrong}.items():
            if rows.any():
                found[f"judge/exact/{name}"] = over_problems(right[rows].astype(float))
        found["judge/chi-square"] = bootstrap_interval(2 * self.solved + right, chi_square_of_codes)
        return found


@dataclass
class Judged(JudgedGiven):
    """What was judged on one split, the policy's own solutions too.

    Shapes: accepted, logp [problems, k] the share of judgements that accept each of its solutions, and its mean
    log-probability.
    """

    own: Evaluation
    accepted: NDArray[np.float64]
    logp: NDArray[np.float64]

    def summary(self, ks: Sequence[int]) -> dict[str, Interval]:
        """The judge, by level too where there are several, and Self-PRM's answers beside votes and pass@k."""
        found = self.of_given() | self._precision("", range(len(self.accepted)))
        levels = [row[0].problem.level for row in self.own.episodes]
        for level in sorted({*levels}) if len({*levels}) > 1 else ():
            found |= self._precision(f"/{level}", [i for i, own in enumerate(levels) if own == level])
        fitting = tuple(k for k in ks if k <= self.own.correct.shape[1])
        found |= summary(self.own.correct, self.own.answers, fitting)
        return found | {f"self-prm@{k}": over_problems(self.chosen(k)) for k in fitting if k > 1}

    def _precision(self, name: str, rows: Sequence[int]) -> dict[str, Interval]:
        """Of its own solutions: how many that it accepts are right, and how many right ones it accepts."""
        accepted, right = self.accepted[list(rows)] > 0.5, self.own.correct[list(rows)]
        shares = {"precision": right[accepted], "recall": accepted[right]}
        return {f"judge/{k}{name}": over_problems(v.astype(float)) for k, v in shares.items() if len(v)}

    def chosen(self, k: int) -> NDArray[np.float64]:
        """[problems] 1 where the answer that is chosen of the first k is right."""
        places = [
            select(self.accepted[i, :k], self.own.answers[i][:k], self.logp[i, :k]) for i in range(len(self.accepted))
        ]
        return np.array([float(self.own.correct[i, place]) for i, place in enumerate(places)])


def select(accepted: ArrayLike, answers: Sequence[str], logp: ArrayLike) -> int:
    """Which of k solutions is chosen: accepted most often, then of the commonest result, then the likeliest.

    >>> select([1, 1, 1, 0], ["7", "8", "8", "9"], [-0.1, -0.9, -0.3, -0.0])
    2
    """
    votes, shares, sure = Counter(a for a in answers if a), np.asarray(accepted, float), np.asarray(logp, float)
    return max(range(len(shares)), key=lambda i: (shares[i], votes[answers[i]], sure[i]))


def judge_f1(labels: Sequence[int], said: Sequence[int | None]) -> float:
    """Harmonic mean of the shares of wrong and of right solutions that are judged exactly; 0 where either is.

    >>> judge_f1([1, 2, -1, -1], [1, 0, -1, -1]), judge_f1([1, 2, -1], [-1, -1, -1])
    (0.6666666666666666, 0.0)
    """
    right = np.array([a == b for a, b in zip(labels, said, strict=True)])
    return float(f1_of_codes((2 * (np.array(labels) != ACCEPTED) + right)[:, None]))


def f1_of_codes(codes: NDArray[Any]) -> NDArray[np.float64]:
    """[...] F1 of rows [..., N, 1]: 3 and 2 for a wrong solution judged exactly or not, 1 and 0 for a right one."""
    n = [(codes[..., 0] == code).sum(-1) for code in range(4)]
    wrong, right = n[3] / np.maximum(n[3] + n[2], 1), n[1] / np.maximum(n[1] + n[0], 1)
    both: NDArray[np.float64] = np.where(wrong + right > 0, 2 * wrong * right / np.maximum(wrong + right, 1e-300), 0.0)
    return both


def chi_square(table: ArrayLike) -> float:
    """Pearson's statistic of independence of a table of counts, without a correction; 0 where a margin is empty.

    >>> chi_square([[10, 20], [20, 10]]), chi_square([[2, 4], [3, 6]])
    (6.666666666666667, 0.0)
    """
    counts = np.asarray(table, float)
    flat = np.repeat(np.arange(4), counts.reshape(-1).astype(int))
    return float(chi_square_of_codes(flat[:, None]))


def chi_square_of_codes(codes: NDArray[Any]) -> NDArray[np.float64]:
    """[...] the same of rows [..., N, 1]: 2 for one of two facts, and 1 for the other, added."""
    a, b, c, d = ((codes[..., 0] == code).sum(-1).astype(float) for code in range(4))
    margins = (a + b) * (c + d) * (a + c) * (b + d)
    total = a + b + c + d
    found: NDArray[np.float64] = np.where(margins > 0, total * (a * d - b * c) ** 2 / np.maximum(margins, 1e-300), 0.0)
    return found


def lag_correlation(first: ArrayLike, second: ArrayLike, lag: int = 0) -> float:
    """Pearson's correlation of one series with another so many points before it; 0 where either does not move.

    Above 0 `second` leads: first[t] is held against second[t - lag].

    Raises: ConfigError for series of different lengths, or of fewer than two points in common.

    >>> round(lag_correlation([0, 0, 1, 2, 3], [0, 1, 2, 3, 3], lag=1), 6), lag_correlation([1, 1], [0, 2])
    (1.0, 0.0)
    """
    a, b = np.asarray(first, float), np.asarray(second, float)
    if a.shape != b.shape or a.ndim != 1 or len(a) - abs(lag) < 2:
        raise ConfigError(
            f"A correlation needs two series of one length with two points in common, got {a.shape} and {b.shape} with "
            f"a lag of {lag}."
        )
    a, b = (a[lag:], b[: len(b) - lag]) if lag >= 0 else (a[:lag], b[-lag:])
    a, b = a - a.mean(), b - b.mean()
    size = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / size if size > 0 else 0.0


def evaluate_judging(
    policy: LanguagePolicy, task: LanguageTask, split: str, judging: Judging = "plain", *, problems: int = 100,
    samples: int = 8, judges: int = 1, seed: int = 0, experience: Groups | None = None,
) -> Judged:  # fmt: skip
    """Sample solutions, judge them, and judge the given ones of the same problems.

    Args:
        samples: solutions of each problem. judges: judgements of each, of a given one too (`judge_given`).

    Raises: DataError for a split without given solutions; ConfigError for a task of several turns, or without answers.
    """
    check_judging(task)
    pool = task.problems(split)
    chosen = [pool[i] for i in range(min(problems, len(pool)))]
    check_given(task, chosen, split)
    own = evaluate_problems(policy, task, chosen, split, samples=samples, seed=seed, experience=experience)
    given = judge_given(policy, task, own, judging, judges=judges, seed=seed, experience=experience)
    asked = [
        question(p, task.solution_steps(e.completion), f"own/{n}", _beside(own, i, n + 1, judging))
        for i, p in enumerate(chosen) for n, e in enumerate(own.episodes[i])
    ]  # fmt: skip
    mine = _verdicts(policy, task, asked, split, judges, seed=seed, experience=experience)
    accepted = np.array([np.mean([word == ACCEPTED for word in words]) for words in mine])
    logp = [[np.mean(e.turns[-1].behaviour_logp) if e.turns else -np.inf for e in row] for row in own.episodes]
    return Judged(
        split, given.labels, given.said, given.solved, own, accepted.reshape(own.correct.shape), np.array(logp)
    )


def judge_given(
    policy: LanguagePolicy, task: LanguageTask, own: Evaluation, judging: Judging = "plain", *, judges: int = 1,
    seed: int = 0, experience: Groups | None = None, temperature: float | None = None,
) -> JudgedGiven:  # fmt: skip
    """Judge the given solutions of the problems that an evaluation asked.

    Args:
        own: its own solutions of them, the first of which is in view of a judge who has one.
        judges: judgements of each solution, of which the commonest word counts.
        temperature: as of `evaluate_problems`.
    """
    chosen = [row[0].problem for row in own.episodes]
    given = [(i, p, steps, label) for i, p in enumerate(chosen) for steps, label in task.given_solutions(p)]
    asked = [question(p, steps, f"given/{n}", _beside(own, i, 0, judging)) for n, (i, p, steps, _) in enumerate(given)]
    said = _verdicts(
        policy, task, asked, own.split, judges, seed=seed, experience=experience, temperature=temperature
    )  # fmt: skip
    solved = np.array([bool(own.correct[i, 0]) for i, *_ in given])
    return JudgedGiven(own.split, [label for *_, label in given], [commonest(words) for words in said], solved)


def _beside(own: Evaluation, i: int, n: int, judging: Judging) -> str | None:
    """The solution in view while number n - 1 is judged: the next one, which of a single one is itself."""
    row = own.episodes[i]
    return row[n % len(row)].completion if judging == "self-ref" else None


def _verdicts(
    policy: LanguagePolicy, task: LanguageTask, asked: Sequence[Problem], split: str, count: int, **how: Any
) -> list[list[int | None]]:
    found = evaluate_problems(policy, task, asked, split, samples=count, **how)
    return [[verdict(e.completion) for e in row] for row in found.episodes]


def commonest(words: Sequence[int | None]) -> int | None:
    """The word that most judgements say, of equals the one that was said first; None where none says a number.

    >>> commonest([2, -1, None, -1]), commonest([2, -1]), commonest([None, None, 3]), commonest([None])
    (-1, 2, 3, None)
    """
    votes = Counter(word for word in words if word is not None)
    return votes.most_common(1)[0][0] if votes else None


def check_given(task: LanguageTask, problems: Sequence[Problem], split: str) -> None:
    """Raise DataError where none of these problems has a given solution."""
    if not any(task.given_solutions(problem) for problem in problems):
        raise DataError(
            f"No problem of the split {split!r} of {task.id} has a solution to judge: give data files the columns "
            "'steps' (a list of texts) and 'label' (the number of the first wrong one, or -1)."
        )


def check_judging(task: LanguageTask) -> None:
    """Raise ConfigError for a task whose solutions cannot be judged."""
    if task.max_turns > 1:
        raise ConfigError(f"A solution of one turn is judged, and {task.id} has up to {task.max_turns}: no judge.")
    if task.judged_by_reward:
        raise ConfigError(f"{task.id} has no answers, so nothing says whether a judge is right: no judge.")


def question(problem: Problem, steps: Sequence[str], name: str, reference: str | None = None) -> Problem:
    """The problem of judging these steps of a solution.

    >>> question(Problem("a", "1+2+3="), ["3", "7"], "given/0").prompt
    '1+2+3=\\n<0> 3\\n<1> 7\\nThe first wrong step, or -1:'
    """
    asked = problem.prompt if isinstance(problem.prompt, str) else str(problem.prompt[-1]["content"])
    shown = REFERENCE.replace("{reference}", reference) if reference is not None else ""
    numbered = "\n".join(f"<{number}> {step}" for number, step in enumerate(steps))
    said = shown + ASKED.replace("{steps}", numbered).replace("{problem}", asked)
    prompt: str | list[Mapping[str, Any]] | Sequence[Message] = said
    if not isinstance(problem.prompt, str):
        prompt = [*problem.prompt[:-1], {**problem.prompt[-1], "content": said}]
    return replace(problem, id=f"{problem.id}/{name}", prompt=prompt)


def verdict(text: str) -> int | None:
    r"""The first whole number of what a judge says, or of its final answer if it marks one; None where there is none.

    >>> verdict(" -1, all is right"), verdict("step 2"), verdict(r"3+4 is 7, not 8. \boxed{1}"), verdict("fine")
    (-1, 2, 1, None)
    """
    stated = stated_answer(text)
    found = re.search(r"-?[0-9]+", text if stated is None else stated)
    return int(found[0]) if found and len(found[0]) < 10 else None
