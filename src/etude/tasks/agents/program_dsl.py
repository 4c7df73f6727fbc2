"""Program-DSL: plan an experiment in a dozen words; running it takes simulated seconds, more for what fits better.

     plan 2
     read features products model trees large train predict save

`plan` names a data set, of 2,000 made-up rows. A program is a row of steps, each of which needs what it stands on:
`features` what was read, `train` features and a model, `predict` a trained model, `save` predictions. One that lacks
something, or a word that is no step, fails there, and the time until then is gone. What was saved is judged by the
share of 1,000 held-out rows that are right.

    features    plain: the columns; squares: with their squares; products: with these and all products of two
    model       constant: the more frequent class; linear: least squares; neighbours: nearest rows; trees: stumps
    its size    small, medium, large: of neighbours the rows that are kept, of trees how many

The models are really fitted, each once; the seconds are those of a table (`seconds`), and nothing waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.core.episodes import Problem, Segment
from etude.core.errors import UnknownNameError
from etude.core.fields import Interval, Probability, WholeNumber
from etude.core.meters import spend
from etude.core.streams import Stream
from etude.core.task import Environment, LanguageTask, SingleTurn, StepResult
from etude.policies.agent_words import FEATURES, MODELS, SIZES
from etude.tasks.agents.games import one_of, spaced
from etude.tasks.pool import Pool

ROWS, COLUMNS = 2_000, 4
Array = NDArray[np.float64]
OF_MODEL = {"constant": 0.1, "linear": 0.3, "neighbours": 0.8, "trees": 1.6}
OF_SIZE = {"small": 0.5, "medium": 1.0, "large": 2.0}
OF_FEATURES = {"plain": 1.0, "squares": 1.25, "products": 1.5}
STEP_SECONDS = 0.02
"""Of a step that is not `train`."""


class Choice(NamedTuple):
    """What is fitted."""

    features: str
    model: str
    size: str


class ProgramDSL(LanguageTask):
    """Programs of a few steps; the share of right predictions, or `failure` where nothing was saved.

    Args:
        data: how many data sets there are.
        failure: what a program is worth that fails or saves nothing.
        good: share of right predictions from which on a program counts as a success.
        clumsy: share of the worked programs that leave a step out.
        seed: of the data sets and the problems.

    Splits: 'train' and 'test', which are drawn apart and ask about the same data sets: a program is what one searches.
    `info` of a step: `steps`, how many were carried out, `submitted`, and `valid`. Simulated seconds are in the metrics
    (`core/meters.py`).

    >>> [round(seconds(Choice("plain", model, "large")), 2) for model in ("constant", "linear", "trees")]
    [0.2, 0.6, 3.2]
    """

    id: ClassVar[str] = "program-dsl"
    max_tokens: ClassVar[int] = 16
    shows_how: ClassVar[bool] = False

    data: Annotated[int, Interval(ge=1, le=9)] = 3
    failure: float = -10.0
    good: Probability = 0.9
    clumsy: Probability = 0.2
    seed: WholeNumber = 0

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in self.splits():
            raise UnknownNameError(f"split of {self.id}", split, self.splits())
        return Pool(lambda i: self._problem(split, i), 20_000 if split == "train" else 1_000)

    def _problem(self, split: str, index: int) -> Problem:
        random = Stream(self.seed).split(self.id, split, index).numpy
        number = 1 + int(random.integers(self.data))
        choice = Choice(*(one_of(random, which) for which in (FEATURES, MODELS, SIZES)))
        steps = program(choice)
        if random.random() < self.clumsy:
            steps.pop(int(random.integers(len(steps))))
        info = {"number": number, "demonstration": "".join(steps)}
        return Problem(f"{self.id}/{split}/{index}", f"{spaced('plan', number)}\n", None, f"data{number}", info)

    def environment(self) -> Environment:
        return Executed(self)

    def score(self, problem: Problem, completion: str) -> float:
        """What a program is worth, whatever it takes."""
        done, choice = executed(completion.split())
        return self.fitted(problem.info["number"], choice) if done[-1:] == ["save"] else self.failure

    def answer(self, completion: str) -> str:
        """The program."""
        return " ".join(completion.split())

    def fitted(self, number: int, choice: Choice) -> float:
        """The share of right predictions on a data set."""
        return accuracy(self.seed, number, choice)


def program(choice: Choice) -> list[str]:
    """The steps of a program that lacks nothing.

    >>> "".join(program(Choice("plain", "linear", "small")))
    ' read features plain model linear small train predict save'
    """
    steps = (("read",), ("features", choice.features), ("model", *choice[1:]), ("train",), ("predict",), ("save",))
    return [spaced(*step) for step in steps]


def seconds(choice: Choice) -> float:
    """What fitting takes."""
    return OF_MODEL[choice.model] * OF_SIZE[choice.size] * OF_FEATURES[choice.features]


class Executed(SingleTurn):
    """A program that is run, and ends the episode."""

    task: ProgramDSL

    def step(self, segment: Segment) -> StepResult:
        done, choice = executed(segment.text.split())
        spend(seconds=STEP_SECONDS * sum(step != "train" for step in done))
        if "train" in done:
            spend(seconds=seconds(choice))
        submitted, worth = done[-1:] == ["save"], self.task.score(self.problem, segment.text)
        success = submitted and worth >= self.task.good
        info = {"success": success, "valid": submitted, "steps": len(done), "submitted": submitted}
        return StepResult([], worth, True, info=info)


def executed(words: Sequence[str]) -> tuple[list[str], Choice]:
    """The steps that were carried out, to the first that could not be or to `save`, and what was chosen by then.

    >>> executed("read features plain train predict save".split())[0]
    ['read', 'features']
    """
    needs = {"read": (), "features": ("read",), "model": (), "train": ("features", "model"), "predict": ("train",),
             "save": ("predict",)}  # fmt: skip
    done, chosen, rest = list[str](), dict[str, str](), list(words)
    while rest and (step := rest.pop(0)) in needs and all(need in done for need in needs[step]):
        for kind, choices in {"features": (("features", FEATURES),), "model": (("model", MODELS), ("size", SIZES))}.get(
            step, ()
        ):  # fmt: skip
            if not rest or rest[0] not in choices:
                return done, Choice(*(chosen.get(k, "") for k in Choice._fields))
            chosen[kind] = rest.pop(0)
        done.append(step)
        if step == "save":
            break
    return done, Choice(*(chosen.get(k, "") for k in Choice._fields))


# What is fitted


@cache
def _data(seed: int, number: int) -> tuple[Array, Array]:
    """Rows, and classes -1 and 1: a product, a square and a threshold of columns, with noise."""
    random = Stream(seed).split("program-dsl", "data", number).numpy
    x, order = random.normal(size=(ROWS, COLUMNS)), random.permutation(COLUMNS)
    a, b, c, d = (x[:, k] for k in order)
    signal = 1.2 * a * b + 1.5 * (c > 0.4) - 0.5 + 0.5 * (d**2 - 1) + 0.3 * random.normal(size=ROWS)
    return x, np.where(signal > 0, 1.0, -1.0)


def _columns(x: Array, features: str) -> Array:
    pairs = [(i, j) for i in range(COLUMNS) for j in range(i + 1, COLUMNS)]
    more = [x**2] if features in ("squares", "products") else []
    more += [np.stack([x[:, i] * x[:, j] for i, j in pairs], 1)] if features == "products" else []
    return np.concatenate([x, *more], 1)


@cache
def accuracy(seed: int, number: int, choice: Choice) -> float:
    """The share of right predictions on the second half of the rows, after fitting on the first."""
    x, y = _data(seed, number)
    x, half = _columns(x, choice.features), ROWS // 2
    fit = {"constant": _constant, "linear": _linear, "neighbours": _neighbours, "trees": _trees}[choice.model]
    predicted = fit(x[:half], y[:half], x[half:], SIZES.index(choice.size))
    return float(np.mean(np.where(predicted > 0, 1.0, -1.0) == y[half:]))


def _constant(x: Array, y: Array, new: Array, size: int) -> Array:
    return np.full(len(new), y.mean())


def _linear(x: Array, y: Array, new: Array, size: int) -> Array:
    ones = np.ones((len(x), 1))
    weights = np.linalg.lstsq(np.concatenate([x, ones], 1), y, rcond=None)[0]
    predicted: Array = np.concatenate([new, ones[: len(new)]], 1) @ weights
    return predicted


def _neighbours(x: Array, y: Array, new: Array, size: int) -> Array:
    """The vote of the nine nearest of 100, 300 or 1,000 rows."""
    x, y = x[: (100, 300, 1000)[size]], y[: (100, 300, 1000)[size]]
    away = (new**2).sum(1)[:, None] - 2 * new @ x.T + (x**2).sum(1)
    voted: Array = y[np.argpartition(away, 9, axis=1)[:, :9]].sum(1)
    return voted


def _trees(x: Array, y: Array, new: Array, size: int) -> Array:
    """10, 40 or 160 stumps, each fitted to what those before it leave, with half of its step."""
    left, predicted = y - y.mean(), np.full(len(new), y.mean())
    thresholds = np.quantile(x, np.linspace(0.05, 0.95, 19), axis=0)
    above = x[None] > thresholds[:, None]
    for stump in _stumps(above, left, (10, 40, 160)[size]):
        place, column, low, high = stump
        predicted = predicted + np.where(new[:, column] > thresholds[place, column], high, low)
    return predicted


def _stumps(above: Any, left: Array, count: int) -> Iterator[tuple[int, int, float, float]]:
    """Threshold, column and what is added below and above it, of one stump after another. above [Q, N, D], left [N]."""
    counts = above.sum(1)
    for _ in range(count):
        sums = np.einsum("qnd,n->qd", above, left)
        high, low = sums / counts, (left.sum() - sums) / (len(left) - counts)
        place, column = np.unravel_index(np.argmax(counts * high**2 + (len(left) - counts) * low**2), sums.shape)
        down, up = 0.5 * float(low[place, column]), 0.5 * float(high[place, column])
        left = left - np.where(above[place, :, column], up, down)
        yield int(place), int(column), down, up


program_dsl = ProgramDSL()
