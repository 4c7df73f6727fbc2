"""The rules of evidence: numbers by hand, SciPy, and simulation of what each rule promises."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from etude.core.claims import Measure
from etude.core.errors import ConfigError, DataError
from etude.evaluation.gates import Gate, Results, conclude, overall, sequential
from etude.evaluation.pairs import Pair
from etude.evaluation.verdicts import ALPHA, LOOKS, Outcome, judge, paired_interval, pairs_needed, score_interval

HELD, REVERSED, EQUIVALENT = Outcome.HELD, Outcome.REVERSED, Outcome.EQUIVALENT
INCONCLUSIVE, VOID = Outcome.INCONCLUSIVE, Outcome.VOID


# One measure


def test_the_paired_interval_is_scipys() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 12))
    theirs = stats.ttest_rel(x, y).confidence_interval(1 - ALPHA)
    ours = paired_interval(x, y)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-9)
    assert ours.value == pytest.approx(np.mean(x - y), abs=1e-12)


def test_pairs_tell_what_two_separate_arms_cannot() -> None:
    seeds = np.linspace(0.2, 0.8, 6)
    arm = seeds + np.array([0.019, 0.021, 0.02, 0.018, 0.022, 0.02])
    assert judge(arm, seeds, smallest=0.01).outcome is HELD
    assert stats.ttest_ind(arm, seeds).pvalue > 0.8


# d = 1, 2, 3, 4 (mean 2.5, s = 1.29099, n = 4): half width t(3; 0.9925) s / 2 = 5.0473... x 0.645497
HALF = float(stats.t.ppf(1 - ALPHA / 2, 3)) * 1.2909944487358056 / 2


@pytest.mark.parametrize(
    ("shift", "smallest", "direction", "margin", "outcome"),
    [
        (HALF + 0.01, 1.0, "higher", 0.0, HELD),  # low = 0.01
        (HALF - 0.01, 1.0, "higher", 0.0, INCONCLUSIVE),  # low = -0.01
        (-HALF - 0.01, 1.0, "higher", 0.0, REVERSED),  # high = -0.01
        (-HALF - 0.01, 1.0, "lower", 0.0, HELD),
        (HALF + 0.01, 1.0, "lower", 0.0, REVERSED),
        (0.0, HALF + 0.01, "higher", 0.0, EQUIVALENT),
        (0.0, HALF - 0.01, "higher", 0.0, INCONCLUSIVE),
        (0.0, HALF + 0.01, "equal", 0.0, HELD),
        (HALF + 0.01, 1.0, "equal", 0.0, REVERSED),
        (HALF + 0.01, 2 * HALF + 0.02, "higher", 0.0, EQUIVALENT),  # above 0, and too small to matter: judged first
        (HALF + 0.51, 1.0, "higher", 0.5, HELD),  # low = 0.51
        (HALF + 0.49, 1.0, "higher", 0.5, INCONCLUSIVE),
        (0.49 - HALF, 1.0, "higher", 0.5, REVERSED),  # high = 0.49
        (HALF - 0.49, 1.0, "higher", -0.5, HELD),  # not worse by more than 0.5
        (0.49 - HALF, 1.0, "lower", -0.5, HELD),
    ],
)
def test_each_outcome(shift: float, smallest: float, direction: str, margin: float, outcome: Outcome) -> None:
    d = np.array([-1.5, -0.5, 0.5, 1.5]) + shift
    found = judge(d + 10, np.full(4, 10.0), smallest, direction, margin)  # type: ignore[arg-type]
    assert found.outcome is outcome
    assert found.interval.value == pytest.approx(shift, abs=1e-12)


def test_one_pair_says_nothing() -> None:
    found = judge([1.0], [0.0], 0.1)
    assert found.outcome is INCONCLUSIVE
    assert found.interval.to_json()["low"] is None


def test_an_undecided_measure_says_how_many_pairs_would_decide() -> None:
    d = np.array([-1.0, 0.0, 1.0, 0.4, -0.6, 0.5])
    found = judge(d, 0.0, 0.5)
    assert found.outcome is INCONCLUSIVE
    needed = found.needed
    assert needed is not None and needed > 6
    goal = max(abs(d.mean()), 0.5 - abs(d.mean()))
    half = [stats.t.ppf(1 - ALPHA / 2, n - 1) * d.std(ddof=1) / np.sqrt(n) for n in (needed - 1, needed)]
    assert half[0] >= goal > half[1]
    assert pairs_needed(d, 0.05, 0.5) <= pairs_needed(d, 0.25, 0.5), "halfway between 0 and `smallest` is the hardest"


def test_scores_that_are_no_pairs_are_refused() -> None:
    with pytest.raises(DataError, match="one score for each of the same seeds"):
        judge([1.0, 2.0], [1.0], 0.1)
    with pytest.raises(DataError, match="finite"):
        judge([1.0, float("nan")], [1.0, 2.0], 0.1)
    with pytest.raises(ConfigError, match="above 0"):
        judge([1.0, 2.0], [1.0, 2.0], 0.0)


# One arm


@pytest.mark.slow
def test_intervals_of_bounded_scores_stay_inside_and_cover() -> None:
    """400 problems per run; the spread between runs is that of the rate itself, too."""
    rng = np.random.default_rng(1)
    for rate in (0.02, 0.5, 0.97):
        inside = 0
        for _ in range(400):
            runs = rng.binomial(400, np.clip(rng.normal(rate, 0.005, 12), 0, 1)) / 400
            found = score_interval(runs)
            assert 0 <= found.low <= found.value <= found.high <= 1
            inside += found.low <= rate <= found.high
        assert inside / 400 > 0.92, (rate, inside / 400)


def test_at_a_bound_the_interval_is_exact() -> None:
    theirs = stats.binomtest(10, 10).proportion_ci(0.95, method="exact")
    assert score_interval([1.0] * 10).low == pytest.approx(theirs.low, abs=1e-12)
    assert score_interval([-1.0] * 10, low=-1, high=1).high == pytest.approx(-1 + 2 * (1 - theirs.low), abs=1e-12)
    with pytest.raises(DataError, match="between 0"):
        score_interval([1.2])


# What looking again and again costs


def first_decisions(effect: float, smallest: float, runs: int, seed: int = 0) -> list[tuple[Outcome, int]]:
    """Outcome and pairs of simulated experiments whose paired difference is normal(effect, 1)."""
    found = []
    for d in np.random.default_rng(seed).normal(effect, 1, (runs, LOOKS[-1])):
        for n in LOOKS:
            judged = judge(d[:n], 0.0, smallest)
            if judged.outcome.decided:
                break
        found.append((judged.outcome, n))
    return found


def share(found: list[tuple[Outcome, int]], *outcomes: Outcome) -> float:
    return sum(o in outcomes for o, _ in found) / len(found)


@pytest.mark.slow
def test_without_effect_a_difference_is_found_in_less_than_one_in_twenty() -> None:
    """4.9% in 200,000 simulations; here 2,000, whose standard error is 0.5%."""
    found = first_decisions(effect=0.0, smallest=1e-6, runs=2000)
    assert 0.034 < share(found, HELD, REVERSED) < 0.064


def test_an_effect_of_one_deviation_takes_few_seeds_and_is_never_reversed() -> None:
    found = first_decisions(effect=1.0, smallest=0.75, runs=600)
    assert share(found, HELD) > 0.97
    assert share(found, REVERSED) == 0
    assert 7 < np.mean([n for _, n in found]) < 18


@pytest.mark.slow
@pytest.mark.parametrize(("smallest", "low", "high"), [(0.75, 0.92, 1.0), (0.5, 0.6, 0.76), (0.3, 0.0, 0.04)])
def test_absence_is_found_where_the_smallest_difference_is_worth_enough(
    smallest: float, low: float, high: float
) -> None:
    found = first_decisions(effect=0.0, smallest=smallest, runs=600)
    assert low <= share(found, EQUIVALENT) <= high


def test_a_peeking_user_gets_no_looks_of_their_own() -> None:
    """Looking after every pair at 5% would find something in a third of experiments without effect."""
    with pytest.raises(ConfigError, match="6, 12, 24, 48"):
        sequential(lambda n: learning(n), [Measure(name="score")], learned_on="score", most=7)
    asked: list[int] = []

    def results(n: int) -> Results:
        asked.append(n)
        return learning(n, effect=0.0, spread=0.05)

    sequential(results, [Measure(name="score")], learned_on="score")
    assert asked == list(LOOKS[: len(asked)])


# Gates: what could not have shown the effect


def learning(n: int = 12, effect: float = 0.05, spread: float = 0.01, start: float = 0.3, end: float = 0.6) -> Results:
    """Both arms learn from `start` to about `end`, the method `effect` further."""
    rng = np.random.default_rng(2)
    base, d = end + rng.normal(0, 0.02, LOOKS[-1]), effect + rng.normal(0, spread, LOOKS[-1])
    arm = (base + d)[:n]
    return Results(
        arm={"score": arm, "shift": np.full(n, 0.2), "late": arm},
        baseline={"score": base[:n], "shift": np.zeros(n), "late": base[:n]},
        start={"score": np.full(n, start)},
        budgets={"updates": (np.full(n, 80.0), np.full(n, 80.0)), "completions": (np.full(n, 9.0), np.full(n, 8.0))},
        weights=([f"a{k}" for k in range(n)], [f"b{k}" for k in range(n)]),
    )


def gates(measures: list[Measure], results: Results, **about: object) -> list[Gate]:
    verdict = conclude(measures, results, **{"learned_on": "score", **about})  # type: ignore[arg-type]
    assert (verdict.outcome is VOID) == bool(verdict.voids)
    return [v.gate for v in verdict.voids]


SCORE = Measure(name="score", smallest=0.02)


def test_a_sound_experiment_passes_every_gate() -> None:
    measures = [SCORE, Measure(name="shift", role="mechanism", minimum=0.1)]
    verdict = conclude(measures, learning(), learned_on="score", equal=["updates"])
    assert verdict.outcome is HELD and not verdict.voids
    assert verdict.to_json()["measures"]["score"]["verdict"] == "held"
    assert verdict.findings["score"].units[0] == pytest.approx(0.05 / 0.02, abs=0.3)


def test_a_dead_bed_is_void() -> None:
    assert gates([SCORE], learning(start=0.57)) == [Gate.LEARNED]
    assert gates([SCORE], learning(start=0.55)) == []
    assert gates([SCORE], learning(start=0.57), learned_on=None) == [], "nothing is trained: nothing has to be learned"


def test_a_baseline_that_becomes_worse_has_not_learned() -> None:
    assert gates([SCORE], learning(start=0.85)) == [Gate.LEARNED]
    verdict = conclude([SCORE], learning(start=0.85), learned_on="score")
    assert "which is worse, not better by 2 times 0.02" in verdict.voids[0].sentence
    error = Measure(name="score", direction="lower", smallest=0.02)
    assert gates([error], learning(start=0.85, effect=-0.05)) == [], "of an error less is better"
    assert gates([error], learning(start=0.3, effect=-0.05)) == [Gate.LEARNED]
    assert gates([Measure(name="score", direction="equal", smallest=0.02)], learning(start=0.85)) == []


def test_what_the_baseline_must_gain_is_in_units_of_what_it_learned_on() -> None:
    percents = Measure(name="late", smallest=5.0, bounds=(None, None))
    score = Measure(name="score", role="mechanism", smallest=0.1)
    assert gates([percents, score], learning(start=0.3)) == []
    assert gates([percents, score], learning(start=0.45)) == [Gate.LEARNED], "less than twice 0.1"


def test_a_ceiling_is_void() -> None:
    assert gates([SCORE], learning(end=0.97, effect=0.0)) == [Gate.ROOM]
    assert gates([Measure(name="score", smallest=0.02, bounds=(0.0, None))], learning(end=0.97, effect=0.0)) == []
    assert gates([Measure(name="score", smallest=0.02, against=0.99)], learning()) == [Gate.ROOM]


def test_a_mechanism_that_did_not_happen_is_void() -> None:
    assert gates([SCORE, Measure(name="shift", role="mechanism", minimum=0.25)], learning()) == [Gate.MECHANISM]


def test_identical_arms_are_void() -> None:
    same = learning()
    copies = Results(same.baseline, same.baseline, same.start, weights=(same.weights[1], same.weights[1]))
    assert gates([SCORE], copies) == [Gate.IDENTICAL]
    assert gates([SCORE], Results(same.baseline, same.baseline, same.start)) == [Gate.IDENTICAL]


def test_seeds_that_change_nothing_are_void() -> None:
    fixed = Results({"score": [0.6] * 6}, {"score": [0.5] * 6}, {"score": [0.2] * 6})
    assert gates([SCORE], fixed) == [Gate.SPREAD]


def test_unequal_budgets_are_void() -> None:
    assert gates([SCORE], learning(), equal=["updates", "completions"]) == [Gate.BUDGET]
    with pytest.raises(DataError, match="did not count tokens"):
        conclude([SCORE], learning(), learned_on="score", equal=["tokens"])


def test_what_rests_on_a_measure_that_was_not_held_is_void() -> None:
    late = Measure(name="late", smallest=0.02, rests_on=("score",))
    lower = Measure(name="score", smallest=0.02, direction="lower", role="mechanism")
    assert gates([late, lower], learning()) == [Gate.RESTS]
    assert gates([late, SCORE], learning()) == []


def test_a_bed_that_cannot_tell_is_void_only_where_it_did_not() -> None:
    noisy = [Measure(name="score", smallest=0.01)]
    wide = sequential(lambda n: learning(n, effect=0.0, spread=0.1), noisy, learned_on="score")
    assert wide.outcome is VOID and [v.gate for v in wide.voids] == [Gate.RESOLUTION]
    large = sequential(lambda n: learning(n, effect=0.2, spread=0.1), noisy, learned_on="score")
    assert large.outcome is HELD
    few = sequential(lambda n: learning(n, effect=0.02, spread=0.013), [SCORE], learned_on="score", most=6)
    assert few.outcome is INCONCLUSIVE and few.findings["score"].needed


def test_an_undecided_experiment_may_be_left_at_a_look_and_is_then_not_called_unable() -> None:
    noisy = [Measure(name="score", smallest=0.02)]

    def wide(n: int) -> Results:
        asked.append(n)
        return learning(n, effect=0.0, spread=0.1)

    asked: list[int] = []
    left = sequential(wide, noisy, learned_on="score", stop=12)
    assert (left.outcome, asked, left.voids) == (INCONCLUSIVE, [6, 12], ())
    assert sequential(wide, noisy, learned_on="score", most=12, stop=48).outcome is VOID, "the most stays the most"
    with pytest.raises(ConfigError, match="got 7 as the most"):
        sequential(wide, noisy, learned_on="score", stop=7)


def test_the_smallest_difference_is_a_tenth_of_the_gain_unless_named() -> None:
    open_measure = [Measure(name="score")]
    found = conclude(open_measure, learning(start=0.1), learned_on="score").findings["score"]
    assert found.smallest == pytest.approx(0.05, abs=0.003)
    small = conclude(open_measure, learning(start=0.56), learned_on="score").findings["score"]
    assert small.smallest == 0.01
    wide = [Measure(name="score", bounds=(-100.0, 400.0))]
    assert conclude(wide, learning(start=0.1), learned_on="score").findings["score"].smallest == 5.0
    assert gates(wide, learning(start=0.1)) == [Gate.LEARNED], "half a point of five hundred is nothing learned"
    none = [Measure(name="score", bounds=(0.0, None))]
    assert conclude(none, learning(start=0.56), learned_on="score").findings["score"].smallest == 0.01


def test_all_core_measures_must_hold() -> None:
    assert overall([HELD, HELD]) is HELD
    assert overall([HELD, INCONCLUSIVE]) is INCONCLUSIVE
    assert overall([EQUIVALENT, INCONCLUSIVE]) is EQUIVALENT
    assert overall([HELD, REVERSED, EQUIVALENT]) is REVERSED
    with pytest.raises(ConfigError, match="one to three core"):
        conclude([Measure(name="score", role="mechanism")], learning(), learned_on=None)
    mechanism = Measure(name="late", role="mechanism", direction="lower", smallest=0.02)
    assert conclude([SCORE, mechanism], learning(), learned_on="score").outcome is HELD, "it decides nothing"


def test_a_score_that_is_not_finite_is_refused_before_it_is_recorded() -> None:
    with pytest.raises(DataError, match=r"end of the baseline with seed 3 is nan: a score must be finite"):
        Pair(seed=3, arm={"end": 0.5}, baseline={"end": float("nan")})
