"""Countdown, one operation per line, and worked answers with a known number of wrong branches.

    prompt      3,5,8->16:
    completion  8-5=3           a wrong branch, to its end
                3+3=6
                restart         it is given up: from the beginning, or with `back 1` from after the first line
                5-3=2
                2*8=16

What counts is what is left when given up lines are taken away (`remaining`): steps that use each number once, come out
right and end at the target. Numbers on the way are whole and not below 0: no target of `countdown` needs others. An
expression alone counts as well, so that a policy which was never shown lines can begin.

The problems are those of `countdown`. Traces are built as in "How Much Backtracking is Enough?" (arXiv:2505.24273).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Annotated, ClassVar, Literal, NamedTuple

from numpy.random import Generator

from etude.core.episodes import Episode, Problem
from etude.core.errors import ConfigError
from etude.core.fields import Interval, WholeNumber
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.tasks.language.countdown import Countdown, evaluate
from etude.tasks.pool import Pool

STEP = re.compile(r"([0-9]{1,6})([-+*/])([0-9]{1,6})=([0-9]{1,12})")
BACK = re.compile(r"restart|back ([1-9])")
TRIES = 50
"""Draws of a branch that is not there yet, before one is said again."""
Shown = Literal["traces", "expressions", "wrong", "of-others", "shuffled"]


class Branch(NamedTuple):
    """Lines that leave a solution after its first `after` steps and end at another number than the target."""

    after: int
    steps: tuple[str, ...]


class CountdownLines(LanguageTask):
    """Arithmetic towards a target, one operation per line, with lines that may be taken back; 1 if right, else 0.

    Args:
        numbers: how many numbers are given; each problem draws one of these.
        largest: numbers are drawn from 1 to this; targets are whole numbers from 1 to 99.
        backtracks: wrong branches of each worked answer.
        shown: what worked answers are: right 'traces'; 'expressions' alone; 'wrong' ones, whose last branch is wrong
            too and is not given up; traces 'of-others', of two problems exchanged; or 'shuffled', with all lines but
            the last in any order.
        seed: which problems are drawn. The train/test divide is the same for every seed.

    Splits: 'train' and 'test', which share no set of numbers with the same target.

    Raises: ConfigError for wrong branches of expressions.

    >>> problem = Problem("1", "3,5,8->16:", 16, info={"numbers": (3, 5, 8)})
    >>> task, solved = CountdownLines(), "5-3=2\\n2*8=16"
    >>> [task.score(problem, text) for text in (solved, "3*5=15\\nrestart\\n" + solved, "2*8=16")]
    [1.0, 1.0, 0.0]
    """

    id: ClassVar[str] = "countdown-lines"
    max_tokens: ClassVar[int] = 384

    numbers: tuple[Annotated[int, Interval(ge=3, le=5)], ...] = (3,)
    largest: Annotated[int, Interval(ge=9, le=99)] = 9
    backtracks: Annotated[int, Interval(ge=0, le=10)] = 0
    shown: Shown = "traces"
    seed: WholeNumber = 0

    def check(self) -> None:
        if not self.numbers:
            raise ConfigError("CountdownLines.numbers must say at least one count of numbers, got none.")
        if self.shown == "expressions" and self.backtracks:
            raise ConfigError(
                "CountdownLines.backtracks must be 0 where expressions are shown, which have no branches."
            )

    @property
    def shows_how(self) -> bool:  # type: ignore[override]  # what is shown decides
        return self.shown in ("traces", "expressions")

    def problems(self, split: str) -> Sequence[Problem]:
        pool = Countdown(numbers=self.numbers, largest=self.largest, seed=self.seed).problems(split)
        return Pool(lambda i: self._problem(pool, split, i), len(pool))

    def score(self, problem: Problem, completion: str) -> float:
        return float(_right(completion, problem.info["numbers"], problem.answer))

    def answer(self, completion: str) -> str:
        """The number that the remaining lines, or an expression, end at; empty where it is neither."""
        if steps := remaining(completion):
            return steps[-1].rpartition("=")[2]
        try:
            return str(evaluate(completion)[0])
        except (ValueError, ZeroDivisionError):
            return ""

    def metrics(self, episode: Episode) -> Mapping[str, float]:
        """How many lines go back, in any text."""
        return {"backtracks": float(backtracks(episode.completion))}

    def solution_steps(self, completion: str) -> list[str]:
        """The lines that remain; all of them where some cannot be read."""
        return remaining(completion) or completion.strip().splitlines()

    def _problem(self, pool: Sequence[Problem], split: str, index: int) -> Problem:
        own = pool[index]
        shown = self._shown(pool[index ^ 1] if self.shown == "of-others" else own)
        info = {"numbers": own.info["numbers"], "demonstration": shown}
        return Problem(f"{self.id}/{split}/{index}", own.prompt, own.answer, own.level, info)

    def _shown(self, problem: Problem) -> str:
        if self.shown == "expressions":
            return str(problem.info["demonstration"])
        random = Stream(self.seed).split("lines", problem.id).numpy
        numbers, target = tuple(sorted(problem.info["numbers"])), int(problem.answer)
        solution = solve(numbers, target, random)
        wrong = self.shown == "wrong"
        branches = draw_branches(numbers, target, solution, self.backtracks + wrong, random)
        if wrong:
            *branches, last = branches
            solution = [*solution[: last.after], *last.steps]
        lines = trace(solution, branches)
        if self.shown == "shuffled":
            lines = [lines[i] for i in random.permutation(len(lines) - 1)] + lines[-1:]
        return "\n".join(lines)


# Reading


def backtracks(text: str) -> int:
    """How many lines go back.

    >>> backtracks("3*5=15\\nrestart\\n5-3=2\\n2+8=10\\nback 1\\n2*8=16")
    2
    """
    return sum(BACK.fullmatch(line.strip()) is not None for line in text.splitlines())


def remaining(text: str) -> list[str]:
    """The steps that are left when those that were given up are taken away; none if a line cannot be read.

    >>> remaining("3*5=15\\nrestart\\n5-3=2\\n2+8=10\\nback 1\\n2*8=16"), remaining("5-3=2\\nback 2")
    (['5-3=2', '2*8=16'], [])
    """
    steps: list[str] = []
    for line in map(str.strip, text.strip().splitlines()):
        if STEP.fullmatch(line):
            steps.append(line)
        elif (back := BACK.fullmatch(line)) and int(back[1] or 0) < len(steps):
            del steps[int(back[1] or 0) :]
        else:
            return []
    return steps


def applied(numbers: Sequence[int], steps: Sequence[str]) -> list[int] | None:
    """What numbers are left after steps; None where one uses a number that is not there, or comes out wrong.

    >>> applied((3, 5, 8), ["5-3=2"]), applied((3, 5, 8), ["5-3=1"]), applied((3, 5, 8), ["5-2=3"])
    ([8, 2], None, None)
    """
    left = Counter(numbers)
    for step in steps:
        found = STEP.fullmatch(step)
        if found is None:
            return None
        a, operator, b, result = int(found[1]), found[2], int(found[3]), int(found[4])
        if Counter((a, b)) - left or not _comes_out(a, operator, b, result):
            return None
        left = left - Counter((a, b))
        left[result] += 1
    return list(left.elements())


def _comes_out(a: int, operator: str, b: int, result: int) -> bool:
    match operator:
        case "+":
            return a + b == result
        case "-":
            return a - b == result
        case "*":
            return a * b == result
        case _:
            return b != 0 and b * result == a


def _right(text: str, numbers: Sequence[int], target: int) -> bool:
    if steps := remaining(text):
        return applied(numbers, steps) == [target]
    try:
        value, used = evaluate(text)
    except (ValueError, ZeroDivisionError):
        return False
    return value == target and Counter(used) == Counter(numbers)


# Writing


def moves(numbers: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Every step from sorted numbers, and the sorted numbers after it.

    >>> moves((2, 6))
    {'6+2=8': (8,), '6*2=12': (12,), '6-2=4': (4,), '6/2=3': (3,)}
    """
    found = {}
    for i, k in combinations(range(len(numbers)), 2):
        small, large = numbers[i], numbers[k]
        others = [n for place, n in enumerate(numbers) if place not in (i, k)]
        results = {"+": large + small, "*": large * small, "-": large - small}
        if small and large % small == 0:
            results["/"] = large // small
        for operator, result in results.items():
            found[f"{large}{operator}{small}={result}"] = tuple(sorted([*others, result]))
    return found


@lru_cache(maxsize=1 << 16)
def reaches(numbers: tuple[int, ...], target: int) -> bool:
    """Whether some steps lead from sorted numbers to the target alone."""
    if len(numbers) == 1:
        return numbers[0] == target
    return any(reaches(after, target) for after in moves(numbers).values())


def solve(numbers: tuple[int, ...], target: int, random: Generator) -> list[str]:
    """A solution, drawn step by step among those that lead to the target. Raises ValueError if there is none."""
    steps: list[str] = []
    while len(numbers) > 1:
        leading = [(step, after) for step, after in moves(numbers).items() if reaches(after, target)]
        if not leading:
            raise ValueError(f"No steps lead from {numbers} to {target}.")
        step, numbers = leading[int(random.integers(len(leading)))]
        steps.append(step)
    return steps


def draw_branches(
    numbers: tuple[int, ...], target: int, solution: Sequence[str], count: int, random: Generator
) -> list[Branch]:
    """Wrong branches in the order in which they leave, from places drawn alike; no two alike if others can be found."""
    states = [numbers]
    for step in solution:
        states.append(moves(states[-1])[step])
    found: list[Branch] = []
    while len(found) < count:
        for _ in range(TRIES):
            after = int(random.integers(len(solution)))
            branch = Branch(after, _wander(states[after], target, solution[after], random))
            if branch not in found:
                break
        found.append(branch)
    return sorted(found, key=lambda branch: branch.after)


def _wander(numbers: tuple[int, ...], target: int, but: str, random: Generator) -> tuple[str, ...]:
    """Any steps until one number is left that is not the target, of which the first is not `but`."""
    steps: list[str] = []
    while len(numbers) > 1:
        going = [(s, n) for s, n in moves(numbers).items() if n != (target,) and (steps or s != but)]
        step, numbers = going[int(random.integers(len(going)))]
        steps.append(step)
    return tuple(steps)


def trace(solution: Sequence[str], branches: Sequence[Branch]) -> list[str]:
    """The solution with its wrong branches, in order, each given up by a line that says to where.

    >>> trace(["5-3=2", "8*2=16"], [Branch(0, ("8-3=5", "5+5=10")), Branch(1, ("8+2=10",))])
    ['8-3=5', '5+5=10', 'restart', '5-3=2', '8+2=10', 'back 1', '8*2=16']
    """
    lines: list[str] = []
    said = 0
    for branch in branches:
        lines += solution[said : branch.after]
        said = branch.after
        lines += [*branch.steps, f"back {said}" if said else "restart"]
    return [*lines, *solution[said:]]


countdown_lines = CountdownLines()
