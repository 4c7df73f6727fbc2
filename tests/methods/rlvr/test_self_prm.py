"""Self-PRM: what choosing by a judge's word comes to, how judging goes along solving, and what the claim compares."""

from __future__ import annotations

from collections import Counter
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from etude.core.errors import ConfigError
from etude.core.registry import get_method
from etude.evaluation.judging import judge_f1, lag_correlation, select, verdict
from etude.evaluation.pass_at_k import pass_at_k
from etude.experiments.arms import START
from etude.experiments.cells import Cell
from etude.experiments.rlvr import self_prm as experiment
from etude.experiments.rlvr.self_prm import ACCURACY, CHOSEN, F1, PRECISION, VOTES, Course
from etude.methods.rlvr.self_prm import self_prm

ALL = [list(right) for right in product([True, False], repeat=4)]


def test_only_the_size_of_a_step_changes_against_grpo() -> None:
    assert self_prm.diff(get_method("grpo", "language")) == {"problems": (32, 16)}


# Choosing: every pattern of four solutions, each right by a chance of its own


def test_a_perfect_word_is_pass_at_k_and_a_constant_or_a_random_one_pass_at_one() -> None:
    """Identity 1, exactly: what is chosen is as often right as a sample is, where the word knows nothing."""
    distinct, sure = list("abcd"), [0.0] * 4  # no two alike, so that votes break no tie
    p = 0.3
    expected = dict.fromkeys(("perfect", "constant", "random", "pass@4"), 0.0)
    for right in ALL:
        chance = float(np.prod([p if r else 1 - p for r in right]))
        expected["perfect"] += chance * right[select(right, distinct, sure)]
        expected["constant"] += chance * right[select([1, 1, 1, 1], distinct, sure)]
        words = [right[select(word, distinct, sure)] for word in product([0, 1], repeat=4)]
        expected["random"] += chance * sum(words) / len(words)
        expected["pass@4"] += chance * pass_at_k(np.array([right]), 4).item()
    assert expected["perfect"] == pytest.approx(expected["pass@4"]) == pytest.approx(1 - (1 - p) ** 4)
    assert expected["constant"] == pytest.approx(p) == pytest.approx(expected["random"])


def test_where_all_are_accepted_votes_decide() -> None:
    for said in product("ab", repeat=5):
        (commonest, _), *_ = Counter(said).most_common()
        assert said[select([1.0] * 5, said, [0.0] * 5)] == commonest


def test_who_always_accepts_and_who_never_does_have_no_f1() -> None:
    """Identity 2."""
    labels = [0, 1, -1, -1]
    assert judge_f1(labels, [-1] * 4) == judge_f1(labels, [0, 1, 0, 0]) == 0.0 < judge_f1(labels, labels)


# Along training


def test_the_correlation_is_pearsons_and_finds_who_leads() -> None:
    random = np.random.default_rng(0)
    a, b = random.normal(size=12), random.normal(size=12)
    assert lag_correlation(a, b) == pytest.approx(np.corrcoef(a, b)[0, 1])
    for lag in (1, 2, 3):
        assert lag_correlation(a, b, lag) == pytest.approx(np.corrcoef(a[lag:], b[:-lag])[0, 1])
        assert lag_correlation(a, b, -lag) == pytest.approx(lag_correlation(b, a, lag))
    later = np.concatenate([[0.0, 0.0], a[:-2]])
    assert lag_correlation(later, a, 2) == pytest.approx(1.0) and abs(lag_correlation(later, a)) < 0.9
    assert lag_correlation([1, 1, 1], [0, 1, 2]) == 0.0


@pytest.mark.parametrize(("a", "b", "lag"), [([1, 2], [1, 2, 3], 0), ([1, 2, 3], [1, 2, 3], 2), ([1], [1], 0)])
def test_series_without_points_in_common_are_refused(a: list[int], b: list[int], lag: int) -> None:
    with pytest.raises(ConfigError, match="two points in common"):
        lag_correlation(a, b, lag)


# The claim


@pytest.fixture
def fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "SOLVED", 40)
    monkeypatch.setattr(experiment, "JUDGED", 30)


@pytest.mark.usefixtures("fewer")
def test_the_start_is_shown_answers_and_judgements_of_other_problems() -> None:
    shown = experiment.worked()
    solved, judgements = shown[: experiment.SOLVED], shown[experiment.SOLVED :]
    assert len(judgements) == experiment.JUDGED
    ids = {p.id for p in solved}
    assert not ids & {p.id.removesuffix("/shown") for p in judgements}
    for p in judgements:
        beside, _, said = (experiment.TASK.demonstration(p) or "").rpartition("\\boxed")
        steps = [line.split()[1] for line in str(p.prompt).splitlines() if line.startswith("<")]
        terms = [int(t) for t in str(p.prompt).partition("=")[0].split("+")]
        totals = [str(sum(terms[: i + 2])) for i in range(len(steps))]
        label = next((i for i, pair in enumerate(zip(totals, steps, strict=True)) if len({*pair}) > 1), -1)
        assert said == f"{{{label}}}" and p.answer == str(label) == str(verdict(f"{beside}\\boxed{said}"))
        looked_at = [pair.split(":") for pair in beside.split(",")]
        assert looked_at == [list(pair) for pair in zip(totals, steps)][: len(steps) if label < 0 else label + 1]
    labels = Counter(p.answer == "-1" for p in judgements)
    assert labels[True] == labels[False]


def test_looks_are_after_every_twenty_steps_with_one_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int, int]] = []

    def says(policy: Any, task: Any, split: str, how: str, *, problems: int, samples: int, seed: int) -> Any:
        asked.append((problems, samples, seed))
        return SimpleNamespace(summary=lambda ks: {n: SimpleNamespace(value=0.5) for n in (F1, ACCURACY, "other")})

    monkeypatch.setattr(experiment, "evaluate_judging", says)
    found = [experiment.look(SimpleNamespace(finished=n, policy=None)) for n in range(1, 41)]  # type: ignore[arg-type]
    assert [n for n, scores in enumerate(found, 1) if scores] == [20, 40] and found[19] == {F1: 0.5, ACCURACY: 0.5}
    assert asked == [(experiment.LOOKED, 1, START)] * 2


def course(f1: float, accuracy: float, along: tuple[tuple[float, float], ...] = ()) -> Course:
    scores = {F1: f1, ACCURACY: accuracy, CHOSEN: 0.8, VOTES: 0.7, PRECISION.format(4): 0.6}
    return Course(scores, {F1: f1 + 0.1}, [{F1: a, ACCURACY: b} for a, b in along])


def test_after_is_held_against_before_and_choosing_against_votes() -> None:
    before, after = [course(0.2, 0.3)], [course(0.5, 0.6, ((0.3, 0.4), (0.5, 0.6)))]
    arm, baseline = experiment.compared(before, after, {F1: 0.1, ACCURACY: 0.2})
    assert self_prm.claim is not None and {m.name for m in self_prm.claim.measures} == arm.keys() == baseline.keys()
    assert (arm["F1 of first wrong steps"], baseline["F1 of first wrong steps"]) == ([0.5], [0.2])
    name = "chosen of 16, against votes"
    assert (arm[name], baseline[name]) == ([0.8], [0.7])
    assert arm["accuracy gained"] == pytest.approx([0.3]) and arm["F1 along accuracy"] == pytest.approx([1.0])
    name = "precision, five numbers, against four"
    assert (arm[name], baseline[name]) == ([0.0], [0.6])  # nothing of five numbers was accepted
    name = "F1 with a solution in view, against none"
    assert (arm[name], baseline[name]) == ([0.6], [0.5])


@pytest.mark.usefixtures("fewer")
def test_the_experiment_begins_both_sides_from_one_start(monkeypatch: pytest.MonkeyPatch) -> None:
    cells: list[Cell] = []

    def fake(cell: Cell) -> Course:
        cells.append(cell)
        return course(0.5 if cell.steps else 0.2, 0.4, ((0.3, 0.4),) if cell.steps else ())

    def warmed(cell: Cell) -> Any:
        assert cell.pool is not None and len(cell.pool) == experiment.SOLVED + experiment.JUDGED
        return SimpleNamespace(policy=SimpleNamespace(save=lambda path: None)), []

    monkeypatch.setattr(experiment, "trained", warmed)
    monkeypatch.setattr(experiment, "judged", lambda *a, **k: {F1: 0.1, ACCURACY: 0.3})
    monkeypatch.setattr(experiment, "follow", fake)
    monkeypatch.setattr(experiment, "spread", lambda function, work: [experiment.follow(w) for w in work])
    found = experiment.experiment([4, 5])
    assert [p.seed for p in found] == [4, 5] and found[1].arm["F1 of first wrong steps"] == 0.5
    assert [(c.label, c.seed, c.steps) for c in cells] == [
        ("before", 4, 0), ("before", 5, 0), ("after", 4, experiment.STEPS), ("after", 5, experiment.STEPS),
    ]  # fmt: skip
    assert len({c.start for c in cells}) == 1
    assert all(c.method.diff(self_prm) == {"optimizer.lr": (None, 1e-4), "minibatches": (1, 4)} for c in cells)
