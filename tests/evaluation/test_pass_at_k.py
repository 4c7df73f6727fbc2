"""pass@k, avg@k and maj@k against enumeration of every subset."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.core.errors import DataError
from etude.core.streams import Stream
from etude.evaluation import pass_at_k as module
from etude.evaluation.pass_at_k import avg_at_k, maj_at_k, over_problems, pass_at_k, summary, to_json


def vote(right: list[bool], said: list[str], subset: tuple[int, ...]) -> float:
    """What one vote is worth, written without the module's shortcuts."""
    counts: dict[str, int] = {}
    for i in subset:
        if said[i]:
            counts[said[i]] = counts.get(said[i], 0) + 1
    winners = [a for a, c in counts.items() if c == max(counts.values())]
    worths = [np.mean([r for r, s in zip(right, said) if s == a]) for a in winners]
    return float(np.mean(worths)) if winners else 0.0


@pytest.mark.parametrize("n", [1, 2, 5, 7])
def test_pass_and_avg_equal_enumeration(n: int) -> None:
    correct = np.array([[i < c for i in range(n)] for c in range(n + 1)])
    for k in range(1, n + 1):
        subsets = list(combinations(range(n), k))
        some = [np.mean([row[list(s)].any() for s in subsets]) for row in correct]
        share = [np.mean([row[list(s)].mean() for s in subsets]) for row in correct]
        np.testing.assert_allclose(pass_at_k(correct, k), some, atol=1e-12)
        np.testing.assert_allclose(avg_at_k(correct, k), share, atol=1e-12)


def test_ten_thousand_samples_stay_exact() -> None:
    n = 10_000
    correct = np.zeros((4, n), bool)
    correct[1, :1] = correct[2, :3] = correct[3, : n - 4] = True
    for k in (1, 17, 5000):
        assert pass_at_k(correct, k)[0] == 0
        assert pass_at_k(correct, k)[1] == pytest.approx(k / n, abs=1e-15)
        three = 1 - (n - k) * (n - k - 1) * (n - k - 2) / (n * (n - 1) * (n - 2))
        assert pass_at_k(correct, k)[2] == pytest.approx(three, rel=1e-10)
    assert pass_at_k(correct, 5)[3] == 1  # only four are wrong


@pytest.mark.parametrize(
    ("right", "said"),
    [
        ([1, 1, 0, 0, 0, 0], ["a", "a", "b", "b", "c", "d"]),
        ([1, 0, 0, 0, 0], ["a", "b", "c", "d", "e"]),
        ([1, 1, 1, 0, 0, 0, 0], ["a", "a", "z", "b", "b", "", ""]),  # two right answers, two silent
        ([1, 0, 1, 0], ["a", "a", "b", "b"]),  # judged right sometimes
        ([0, 0, 0], ["", "", ""]),
        ([1, 1, 1], ["a", "a", "a"]),
    ],
)
def test_majority_equals_enumeration(right: list[int], said: list[str]) -> None:
    n = len(said)
    for k in range(1, n + 1):
        expected = np.mean([vote([bool(r) for r in right], said, s) for s in combinations(range(n), k)])
        assert maj_at_k([right], [said], k)[0] == pytest.approx(expected, abs=1e-12)


@given(st.lists(st.sampled_from(["x", "y", "z", ""]), min_size=1, max_size=7), st.data())
def test_majority_equals_enumeration_of_anything(said: list[str], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(said)))
    right = [s == "x" for s in said]
    expected = np.mean([vote(right, said, s) for s in combinations(range(len(said)), k)])
    assert maj_at_k([right], [said], k)[0] == pytest.approx(expected, abs=1e-12)


def test_majority_by_resampling_agrees_with_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    said = ["a"] * 12 + ["b"] * 11 + ["c"] * 5 + [""] * 4
    right = [s == "a" for s in said]
    exact = maj_at_k([right], [said], 9)[0]
    monkeypatch.setattr(module, "EXACT_COST", 0)
    sampled = maj_at_k([right], [said], 9)[0]
    assert sampled != exact
    assert sampled == pytest.approx(exact, abs=4 * 0.5 / np.sqrt(module.DRAWS))
    assert maj_at_k([right], [said], 9)[0] == sampled  # the same subsets each time
    silent = maj_at_k([[True] + [False] * 20], [["a"] + [""] * 20], 2)[0]
    assert silent == pytest.approx(2 / 21, abs=0.02)  # nobody voting is not a tie of all


def test_majority_of_many_samples_does_not_overflow() -> None:
    said = ["a"] * 600 + ["b"] * 400
    right = [s == "a" for s in said]
    assert maj_at_k([right], [said], 3)[0] == pytest.approx(0.6**3 + 3 * 0.6**2 * 0.4, abs=2e-3)
    more = said * 2  # beyond what binomials in floats can count
    assert maj_at_k([right * 2], [more], 1001)[0] == pytest.approx(1.0, abs=1e-3)


def test_one_vote_is_one_attempt() -> None:
    correct = np.random.default_rng(0).random((20, 8)) < 0.4
    answers = [["right" if c else f"wrong {i}" for i, c in enumerate(row)] for row in correct]
    np.testing.assert_allclose(maj_at_k(correct, answers, 1), pass_at_k(correct, 1), atol=1e-12)


def test_pass_grows_with_attempts() -> None:
    correct = np.random.default_rng(0).random((50, 16)) < 0.2
    curve = np.array([pass_at_k(correct, k) for k in range(1, 17)])
    assert (np.diff(curve, axis=0) >= 0).all()


@pytest.mark.parametrize("measure", [pass_at_k, avg_at_k])
def test_more_attempts_than_samples_is_refused(measure: object) -> None:
    with pytest.raises(DataError, match="between 1 and the number of samples per problem, got k = 9 of 8 samples"):
        measure(np.zeros((3, 8), bool), 9)  # type: ignore[operator]


def test_bad_input_is_refused() -> None:
    with pytest.raises(DataError, match="k = 0 of 2"):
        pass_at_k([[True, False]], 0)
    with pytest.raises(DataError, match="true or false"):
        pass_at_k([[0.3, 1.0]], 1)
    with pytest.raises(DataError, match=r"\[problems, samples\]"):
        pass_at_k([True, False], 1)
    with pytest.raises(DataError, match="2 answers for each of 1 problems"):
        maj_at_k([[True, False]], [["a"]], 1)


def test_summary_names_and_intervals() -> None:
    correct = np.random.default_rng(1).random((100, 8)) < 0.3
    answers = [["yes" if c else "no" for c in row] for row in correct]
    found = summary(correct, answers, ks=(1, 8), seed=3)
    assert list(found) == ["pass@1", "pass@8", "avg@8", "maj@8"]
    assert found["pass@1"].value == pytest.approx(correct.mean())
    assert all(i.low <= i.value <= i.high for i in found.values())
    assert found == summary(correct, answers, ks=(1, 8), seed=3)
    assert to_json(found)["pass@1"]["low"] == found["pass@1"].low


def test_interval_over_problems_has_the_width_of_the_standard_error() -> None:
    values = np.random.default_rng(2).random(400)
    interval = over_problems(values, resamples=8000, rng=Stream(0))
    half = 1.96 * values.std() / np.sqrt(400)
    assert interval.high - interval.low == pytest.approx(2 * half, rel=0.05)
    assert over_problems(values, rng=1) == over_problems(values, rng=1) != over_problems(values, rng=2)
