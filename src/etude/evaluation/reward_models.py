"""How good a reward model is where the truth is known: pairs, best of N, and how far its word and the truth part.

Scores and gold are [P, K], of K answers to each of P problems, sampled from one policy.
"""

from __future__ import annotations

from math import comb, log

import numpy as np
from numpy.typing import ArrayLike, NDArray

from etude.core.errors import DataError

Array = NDArray[np.float64]


def pair_accuracy(scores: ArrayLike, gold: ArrayLike) -> float:
    """Of all pairs of answers to a problem that are not worth the same, the share in the right order; ties are half.

    >>> pair_accuracy([[1.0, 2.0, 2.0]], [[0.0, 1.0, 2.0]])
    0.8333333333333334
    """
    said, true = _both(scores, gold)
    first, second = np.triu_indices(said.shape[1], 1)
    gap, truth = np.sign(said[:, first] - said[:, second]), np.sign(true[:, first] - true[:, second])
    right = np.where(gap == 0, 0.5, gap == truth)[truth != 0]
    return float(right.mean()) if len(right) else float("nan")


def calibration_by_rank(scores: ArrayLike, gold: ArrayLike, bins: int = 10) -> tuple[Array, Array]:
    """What scores promise and what is so, [bins] each, from the pairs that they are least sure of to the surest.

    The pairs of `pair_accuracy`, ranked by the gap of their scores and cut into parts of equal size: the mean of
    sigmoid(|gap|), the chance with which Bradley and Terry have the better one preferred, and the share in the right
    order. Scores that are log-odds of preferences lie on the diagonal; an increasing function of them need not.

    Raises: DataError for fewer pairs than bins.

    >>> said, right = calibration_by_rank([[0.0, 1.0, 4.0]], [[0.0, 2.0, 1.0]], bins=3)
    >>> said.round(2).tolist(), right.tolist()  # gaps of 1, 3 and 4
    ([0.73, 0.95, 0.98], [1.0, 0.0, 1.0])
    """
    said, true = _both(scores, gold)
    first, second = np.triu_indices(said.shape[1], 1)
    gap, truth = said[:, first] - said[:, second], np.sign(true[:, first] - true[:, second])
    gap, truth = gap[truth != 0], truth[truth != 0]
    if len(gap) < bins:
        raise DataError(
            f"Of {len(gap)} pairs that are not worth the same {bins} parts cannot be made: take fewer bins."
        )
    right = np.where(gap == 0, 0.5, np.sign(gap) == truth)
    order = np.abs(gap).argsort(kind="stable")
    parts = np.array_split(order, bins)
    sure = 1 / (1 + np.exp(-np.abs(gap)))
    return np.array([sure[part].mean() for part in parts]), np.array([right[part].mean() for part in parts])


def best_of_n(scores: ArrayLike, gold: ArrayLike, n: int) -> Array:
    """[P] what the answer is worth on average that scores best of n drawn from a problem's K, without replacement.

        sum_k C(k - 1, n - 1) / C(K, n) gold_(k),  gold_(k) of the answer with the k-th lowest score

    All K answers are used whatever n is, as in pass@k; answers with equal scores are as likely to be taken. Any
    increasing function of the scores gives the same.

    Raises: DataError unless 1 <= n <= K.

    >>> best_of_n([[0.0, 1.0, 2.0]], [[5.0, 7.0, 9.0]], 2).round(4).tolist()  # 9 of two of three pairs, 7 of one
    [8.3333]
    """
    said, true = _both(scores, gold)
    count = said.shape[1]
    if not 1 <= n <= count:
        raise DataError(f"best_of_n takes n from 1 to the {count} answers of a problem, got {n}.")
    weights = np.array([comb(k, n - 1) / comb(count, n) for k in range(count)])
    order = said.argsort(axis=1, kind="stable")
    ranked = np.take_along_axis(said, order, 1)
    found = np.empty(len(said))
    for row in range(len(said)):
        _, whose = np.unique(ranked[row], return_inverse=True)
        alike = np.bincount(whose, weights) / np.bincount(whose)
        found[row] = (alike[whose] * true[row, order[row]]).sum()
    return found


def best_of_n_kl(n: int) -> float:
    """KL of best-of-n from its base, log n - (n - 1) / n nats, where no two scores are equal.

    >>> [round(best_of_n_kl(n), 4) for n in (1, 4, 64)]
    [0.0, 0.6363, 3.1745]
    """
    return log(n) - (n - 1) / n


def proxy_gap(scores: ArrayLike, gold: ArrayLike, n: int) -> float:
    """Best-of-n by the scores: how many deviations it rises by them, less how many it rises in gold.

    Deviations and means are those of all answers. 0 where the scores are an increasing line of gold, or n is 1.

    >>> gap = proxy_gap([[0.0, 1.0, 2.0]], [[0.0, 1.0, 0.0]], 3)
    >>> round(gap, 4)  # (2 - 1) / sqrt(2/3) - (0 - 1/3) / sqrt(2/9)
    1.9319
    """
    said, true = _both(scores, gold)

    def rise(values: Array) -> float:
        return float((best_of_n(said, values, n).mean() - values.mean()) / values.std())

    return rise(said) - rise(true)


def best_of_n_fit(distance: ArrayLike, gold: ArrayLike) -> tuple[float, float]:
    """a and b of gold = d (a - b d), d = sqrt(KL), by least squares: what best-of-n comes to (arXiv:2210.10760).

    >>> a, b = best_of_n_fit([1.0, 2.0, 3.0], [1.5, 2.0, 1.5])
    >>> round(a, 6), round(b, 6)
    (2.0, 0.5)
    """
    d = np.asarray(distance, float)
    return _fit(d, -(d**2), gold)


def reinforcement_fit(distance: ArrayLike, gold: ArrayLike) -> tuple[float, float]:
    """a and b of gold = d (a - b log d), d = sqrt(KL) above 0: what reinforcement learning comes to (the same paper).

    >>> a, b = reinforcement_fit([1.0, np.e, np.e**2], [2.0, np.e, 0.0])
    >>> round(a, 6), round(b, 6)
    (2.0, 1.0)
    """
    d = np.asarray(distance, float)
    if not (d > 0).all():
        raise DataError("The law of reinforcement learning is of distances above 0: leave the start out.")
    return _fit(d, -d * np.log(d), gold)


def _fit(first: Array, second: Array, gold: ArrayLike) -> tuple[float, float]:
    (a, b), *_ = np.linalg.lstsq(np.stack([first, second], 1), np.asarray(gold, float), rcond=None)
    return float(a), float(b)


def _both(scores: ArrayLike, gold: ArrayLike) -> tuple[Array, Array]:
    said, true = np.asarray(scores, float), np.asarray(gold, float)
    if said.ndim != 2 or said.shape != true.shape:
        raise DataError(f"Scores and gold must be of one shape [P, K], got {said.shape} and {true.shape}.")
    return said, true
