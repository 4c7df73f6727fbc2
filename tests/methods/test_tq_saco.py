"""A slice of the study of TQ and SACo: its five kinds of data, the identities of both numbers on them, its claim."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from etude.core.fit import check
from etude.core.registry import get_method
from etude.evaluation.data_measures import limits, trajectory_quality
from etude.evaluation.data_measures import pairs as unique_pairs
from etude.experiments.offline import tq_saco as study
from etude.experiments.offline.tq_saco import KINDS, Slice, correlation, covered, five_kinds, mean_return, slice_of
from etude.experiments.on_logs import Columns

NINE = ("bc-discrete", "bve", "mce", "dqn", "qr-dqn", "rem", "discrete-bcq", "cql-discrete")
"""Those of the study's methods that make choices."""


@pytest.fixture(scope="module")
def data() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        for name, size in {"STEPS": 500, "SIZE": 500, "STAGES": 2, "PLAYED": 2}.items():
            patch.setattr(study, name, size)
        yield five_kinds(3)


@pytest.fixture
def better(data: Any) -> Any:
    """With the better of both as the expert's, whoever learned so little."""
    ends = sorted(("random", "expert"), key=lambda kind: mean_return(data[kind]))
    return {**data, "random": data[ends[0]], "expert": data[ends[1]]}


def quality(columns: Columns, data: dict[str, Columns]) -> float:
    return trajectory_quality(mean_return(columns), mean_return(data["random"]), mean_return(data["expert"]))


def twice(columns: Columns) -> Columns:
    return {name: np.concatenate([x, x]) for name, x in columns.items()}


@pytest.mark.slow
def test_the_references_have_a_quality_of_0_and_1_and_cover_themselves(better: Any) -> None:
    data = better
    assert (quality(data["random"], data), quality(data["expert"], data)) == (0.0, 1.0)
    coverage = covered(data, "replay")
    assert coverage["replay"] == 1.0 and set(coverage) == set(KINDS)
    again = {kind: twice(columns) for kind, columns in data.items()}
    assert covered(again, "replay") == coverage
    assert quality(again["noisy"], data) == pytest.approx(quality(data["noisy"], data), abs=1e-12)
    joined = {**data, "mixed": {n: np.concatenate([x, data["noisy"][n]]) for n, x in data["mixed"].items()}}
    most = covered(joined, "replay")["mixed"]
    assert max(coverage["mixed"], coverage["noisy"]) <= most <= coverage["mixed"] + coverage["noisy"] + 1e-12


@pytest.mark.slow
def test_the_kinds_are_who_they_say(data: Any) -> None:
    for kind, columns in data.items():
        over = columns["terminals"] | columns["timeouts"]
        assert over[-1] and not (columns["terminals"] & columns["timeouts"]).any(), kind
        follows = np.flatnonzero(~over)
        assert np.array_equal(columns["next_observations"][follows], columns["observations"][follows + 1]), kind
        assert len(over) == 500 if kind == "replay" else len(over) >= 500, kind
    by_chance = abs(np.mean(data["random"]["actions"]) - 0.5)
    assert by_chance < 0.1
    assert len(np.unique(data["replay"]["observations"], axis=0)) > 450


def test_unique_pairs_of_disjoint_sets_add_up_and_of_others_do_not() -> None:
    rng = np.random.default_rng(0)
    seen, done = rng.uniform(0, 1, (2, 300, 2)), np.zeros((2, 300, 1))
    done[1] = 1.0  # another choice everywhere: no pair of one is a pair of the other
    low, high = limits(seen.reshape(-1, 2), done.reshape(-1, 1))

    def u(*which: int, choices: Any = done) -> int:
        return len(
            unique_pairs(
                np.concatenate([seen[k] for k in which]), np.concatenate([choices[k] for k in which]), low, high
            )
        )

    assert u(0, 1) == u(0) + u(1)
    same = np.zeros_like(done)
    assert u(0, 1, choices=same) < u(0, choices=same) + u(1, choices=same)
    assert u(0, 1) >= max(u(0), u(1))


def test_quality_is_the_same_in_other_units_of_rewards() -> None:
    """Of episodes of one length, whatever is added to every reward and multiplies it."""
    ends = np.arange(40) % 10 == 9

    def columns(seed: int) -> Columns:
        return {"rewards": np.random.default_rng(seed).normal(size=40), "terminals": ends, "timeouts": ~ends & ends}

    def in_units(scale: float, shift: float) -> float:
        worst, some, best = sorted((columns(k) for k in range(3)), key=mean_return)
        each = [mean_return({**c, "rewards": scale * c["rewards"] + shift}) for c in (some, worst, best)]
        return trajectory_quality(*each)

    assert in_units(1.0, 0.0) == pytest.approx(in_units(7.0, -3.0), abs=1e-12)


def test_correlation_is_pearsons() -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 9))
    assert correlation(list(x), list(y)) == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-12)
    assert correlation(list(x), list(3 - 2 * x)) == pytest.approx(-1.0, abs=1e-12)


@pytest.mark.parametrize("name", NINE)
def test_all_methods_stand_on_common_ground(name: str) -> None:
    method: Any = study.on_common_ground(name)
    check(method)
    ground: Any = get_method("tq-saco")
    assert method.sampling == ground.sampling and method.experience == ground.experience
    own = method.policy if method.critic is None else method.critic
    assert own.learning.optimizer.lr == 1e-3 and own.network.hidden == (64, 64)
    published: Any = get_method(name)
    assert published.transforms == method.transforms


EARNED = {  # of each kind, in the order of KINDS, by which the numbers below are worked out by hand
    "dqn": (80.0, 20.0, 60.0, 20.0, 100.0), "bc-discrete": (20.0, 120.0, 20.0, 100.0, 60.0),
    "cql-discrete": (80.0, 120.0, 100.0, 120.0, 60.0),
}  # fmt: skip


def test_a_slice_is_what_its_claim_asks_for(better: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    worst, best = (mean_return(better[kind]) for kind in ("random", "expert"))

    def learned(method: Any, columns: Columns, *rest: Any) -> list[float]:
        kind = next(kind for kind, each in better.items() if each is columns)
        score = EARNED[method.id][KINDS.index(kind)] / 100
        return [worst, worst + score * (best - worst)]

    monkeypatch.setattr(study, "five_kinds", lambda seed: better)
    monkeypatch.setattr(study, "before_and_after", learned)
    found = slice_of(Slice(4))
    (pair,) = study.experiment([4])
    claim = get_method("tq-saco").claim
    assert claim is not None and {m.name for m in claim.measures} == set(pair.arm)
    assert set(pair.baseline) == {m.name for m in claim.measures if m.against is None}
    tq, saco = ([found[name][kind] for kind in KINDS] for name in ("tq", "saco"))
    assert (tq[0], tq[1], saco[4]) == (0.0, 1.0, 1.0)
    assert pair.arm[study.SCORE] == pytest.approx(0.96)
    assert pair.baseline[study.SCORE] == pytest.approx(0.64)  # of cloning: DQN's mean is 0.56
    assert pair.start[study.SCORE] == pytest.approx(0.0)
    assert (pair.arm[study.BOTH], pair.baseline[study.BOTH]) == pytest.approx((1.1, 0.6))
    of = {name: np.array(each) / 100 for name, each in EARNED.items()}
    for name, numbers, first, second in (
        (study.BY_COVERAGE, saco, "dqn", "bc-discrete"), (study.BY_QUALITY, tq, "bc-discrete", "dqn")
    ):  # fmt: skip
        assert pair.arm[name] == pytest.approx(np.corrcoef(of[first], numbers)[0, 1])
        assert pair.baseline[name] == pytest.approx(np.corrcoef(of[second], numbers)[0, 1])
    assert pair.arm[study.APART] == pytest.approx(saco[0] - saco[1])
