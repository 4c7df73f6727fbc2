"""How often k attempts succeed: pass@k, avg@k and maj@k from n samples per problem, with intervals.

Everything is an expectation over the random choice of k of the n samples, so all samples are used and k may be
anything up to n. Shapes: `correct` [problems, n] bool; results [problems], or one interval over problems.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import comb
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from etude.core.errors import DataError
from etude.core.streams import Stream
from etude.evaluation.intervals import Array, Interval, Randomness, bootstrap_interval, mean

EXACT_COST = 3e7
"""Multiplications that one problem's exact majority vote may take; above, it is estimated."""
DRAWS = 4000
"""Random subsets of that estimate: its standard error is at most 0.008 per problem."""


def pass_at_k(correct: ArrayLike, k: int) -> Array:
    """Probability that at least one of k samples is right: 1 - C(n - c, k) / C(n, k), per problem.

    The unbiased estimate of "Evaluating Large Language Models Trained on Code" (arXiv:2107.03374, eq. 1), as a
    product of factors in [0, 1], so that nothing overflows at n = 10^4.

    Args:
        correct: [problems, n] bool.

    Raises DataError if there are fewer than k samples per problem.

    >>> pass_at_k([[True, False, False, False]], 2).tolist()
    [0.5]
    """
    right = _samples(correct, k)
    n = right.shape[1]
    i = np.arange(n - k)
    # fails[c] = C(n - c, k) / C(n, k) = prod_{i < c} (n - k - i) / (n - i), and 0 where c > n - k
    fails = np.concatenate([[1.0], np.cumprod((n - k - i) / (n - i)), np.zeros(k)])
    found: Array = 1 - fails[right.sum(1)]
    return found


def avg_at_k(correct: ArrayLike, k: int) -> Array:
    """Expected fraction of k samples that is right: c / n whatever k is; its spread is what k changes."""
    found: Array = _samples(correct, k).mean(1)
    return found


def maj_at_k(correct: ArrayLike, answers: Sequence[Sequence[str]], k: int, *, seed: int = 0) -> Array:
    """Probability that the most frequent of k answers is right, per problem ("self-consistency", arXiv:2203.11171).

    Ties are split evenly. An empty answer means that none was found, and does not vote; if nobody votes, the vote is
    wrong. Where one answer was judged right in some samples and wrong in others, it counts as the fraction.
    Exact (by counting subsets) where that is cheap, else from 4,000 random subsets under a fixed seed.

    Args:
        correct: [problems, n] bool.
        answers: the extracted answer of each sample, as `LanguageTask.answer` gives it.

    Raises DataError if there are fewer than k samples, or not one answer per sample.
    """
    right = _samples(correct, k)
    if [len(a) for a in answers] != [right.shape[1]] * len(right):
        raise DataError(f"answers must hold {right.shape[1]} answers for each of {len(right)} problems.")
    stream = Stream(seed, ("maj@k",))
    return np.array(
        [_majority(row, list(answered), k, stream.split(i)) for i, (row, answered) in enumerate(zip(right, answers))]
    )


@dataclass(frozen=True)
class OverProblems(Interval):
    """A mean over problems with its interval, which knows what each problem was worth.

    Shapes: values [problems].

    >>> after, before = over_problems([1.0, 0.0, 1.0]), over_problems([0.5, 0.0, 0.5])
    >>> after.against(before).values.tolist(), round(after.against(before).value, 4)
    ([0.5, 0.0, 0.5], 0.3333)
    """

    values: Array = field(default_factory=lambda: np.zeros(0), repr=False, compare=False)

    def against(self, other: OverProblems) -> OverProblems:
        """How much more this one is worth, problem by problem. Raises DataError for another number of problems."""
        if len(self.values) != len(other.values):
            raise DataError(
                f"A paired difference is over the same problems, and there are {len(self.values)} and "
                f"{len(other.values)} of them."
            )
        return over_problems(self.values - other.values)


def over_problems(
    values: ArrayLike, *, resamples: int = 2000, level: float = 0.95, rng: Randomness = 0
) -> OverProblems:
    """The mean over problems, with its bootstrap interval: what another draw of such problems would give."""
    found = bootstrap_interval(values, mean, resamples=resamples, level=level, rng=rng)
    return OverProblems(found.value, found.low, found.high, found.level, found.method, np.asarray(values, float))


def summary(
    correct: ArrayLike, answers: Sequence[Sequence[str]] | None = None, ks: Sequence[int] = (1, 8), *, seed: int = 0
) -> dict[str, Interval]:
    """'pass@k' for each k, 'avg@n' over all n samples, and with answers 'maj@k' for k > 1; intervals over problems.

    Raises DataError if some k is more than the samples there are.
    """
    n = np.shape(correct)[-1]
    estimates: dict[str, Array] = {f"pass@{k}": pass_at_k(correct, k) for k in ks}
    estimates[f"avg@{n}"] = avg_at_k(correct, n)
    if answers is not None:
        estimates |= {f"maj@{k}": maj_at_k(correct, answers, k, seed=seed) for k in ks if k > 1}
    return {name: over_problems(values, rng=seed) for name, values in estimates.items()}


def paired(later: Mapping[str, Interval], earlier: Mapping[str, Interval]) -> dict[str, Interval]:
    """How much more the later one is worth by each metric of both that is a mean over problems, problem by problem."""
    return {
        name: own.against(before)
        for name, own in later.items()
        if isinstance(own, OverProblems) and isinstance(before := earlier.get(name), OverProblems)
    }


def to_json(intervals: Mapping[str, Interval]) -> dict[str, Any]:
    """A summary as JSON values."""
    return {name: interval.to_json() for name, interval in intervals.items()}


def _samples(correct: ArrayLike, k: int) -> NDArray[np.bool_]:
    right = np.asarray(correct)
    if right.ndim != 2 or right.size == 0:
        raise DataError(f"correct must be [problems, samples] with at least one problem, got shape {right.shape}.")
    if right.dtype != bool and not np.isin(right, (0, 1)).all():
        raise DataError("correct must hold true or false for each sample; compare rewards with a threshold first.")
    if k < 1 or k > right.shape[1]:
        n = right.shape[1]
        raise DataError(f"k must be between 1 and the number of samples per problem, got k = {k} of {n} samples.")
    return right.astype(bool)


def _majority(right: NDArray[np.bool_], answers: list[str], k: int, stream: Stream) -> float:
    """One problem's maj@k."""
    names, index, counts = np.unique([a for a in answers if a], return_inverse=True, return_counts=True)
    if len(names) == 0:
        return 0.0
    voted = right[[i for i, a in enumerate(answers) if a]]
    worth = np.bincount(index, weights=voted) / counts
    silent = len(answers) - len(voted)
    paid = np.flatnonzero(worth)
    cost = len(paid) * len(answers) * min(k, counts.max()) * min(k, len(names)) * k
    if cost > EXACT_COST or len(answers) > 1000:  # above 1,000 the binomials leave the range of a float
        return _majority_sampled(worth, counts, silent, k, stream)
    return float(sum(worth[a] * _wins(counts[a], np.delete(counts, a), silent, k) for a in paid))


def _wins(own: int, others: NDArray[np.int64], silent: int, k: int) -> float:
    """P(an answer given `own` times wins the vote of k random samples), a win shared by t + 1 counting 1 / (t + 1).

    ways[j, t, s] counts the ways to choose s samples among the others when the answer itself was drawn j + 1 times:
    none of the others more often than that, t of them exactly as often.
    """
    most, ties = min(own, k), min(len(others), k)
    level = np.arange(1, most + 1)[:, None, None]
    ways = np.zeros((most, ties + 1, k + 1))
    ways[:, 0] = [comb(silent, s) for s in range(k + 1)]
    for count in others:
        new = ways.copy()
        for drawn in range(1, min(int(count), k) + 1):
            chosen = comb(int(count), drawn) * ways[:, :, : k + 1 - drawn]
            new[:, :, drawn:] += chosen * (drawn < level)
            new[:, 1:, drawn:] += chosen[:, :-1] * (drawn == level)
        ways = new
    shares = 1 / np.arange(1, ties + 2)
    won = sum(comb(own, j) * (ways[j - 1, :, k - j] @ shares) for j in range(1, most + 1))
    return float(won / comb(own + int(others.sum()) + silent, k))


def _majority_sampled(worth: Array, counts: NDArray[np.int64], silent: int, k: int, stream: Stream) -> float:
    votes = stream.numpy.multivariate_hypergeometric([*counts, silent], k, DRAWS, method="marginals")[:, :-1]
    top = votes.max(1, keepdims=True)
    winners = (votes == top) & (top > 0)
    return float((winners @ worth / np.maximum(winners.sum(1), 1)).mean())
