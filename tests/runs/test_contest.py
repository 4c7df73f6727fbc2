"""Many arms on one bed: which runs are made, what is kept, and what follows from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from test_beds import RECIPE

from etude.core.errors import ConfigError
from etude.evaluation.learning import fit_curve
from etude.runs.beds import CONFIRMING, Bed, load_bed
from etude.runs.claim_runs import PUBLISHED, TUNED
from etude.runs.contest import Arm, both, compete, failures, settings_of, table
from etude.runtime.jsonl import JsonLines

SEEDS = 12


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    path = tmp_path / "small.toml"
    path.write_text(RECIPE)
    return load_bed(str(path))


def _lines(areas: dict[str, NDArray[np.float64]], setting: str = PUBLISHED) -> list[dict[str, Any]]:
    """Runs that start at 0.2, of arms with these areas."""
    return [
        {"arm": arm, "setting": setting, "seed": CONFIRMING + i, "curve": [0.2, *[area] * 4], "area": area, "end": area,
         "tuned": {}, "completions": 100.0 if arm != "twice" else 200.0}
        for arm, found in areas.items() for i, area in enumerate(found.tolist())
    ]  # fmt: skip


def _areas(**means: float) -> dict[str, NDArray[np.float64]]:
    rng = np.random.default_rng(0)
    shared = rng.normal(0, 0.05, SEEDS)
    return {arm: mean + shared + rng.normal(0, 0.02, SEEDS) for arm, mean in means.items()}


def test_differences_are_paired_and_judged_together(bed: Bed) -> None:
    """The baseline at 0.6 of 1 leaves a headroom of 0.4; its gain of 0.4 makes 0.04 the smallest that matters."""
    areas = _areas(grpo=0.6, high=0.75, low=0.45, same=0.6, twice=0.66)
    rows = {row.arm: row for row in table(bed, _lines(areas), PUBLISHED)}
    assert list(rows) == ["high", "twice", "same", "low"]
    p = {arm: stats.ttest_rel(areas[arm], areas["grpo"]).pvalue for arm in rows}
    ranked = sorted(p, key=lambda arm: p[arm])
    by_hand = {
        arm: min(p[worse] * len(p) / (ranked.index(worse) + 1) for worse in ranked[ranked.index(arm) :]) for arm in p
    }
    headroom = 1 - areas["grpo"].mean()
    for arm, row in rows.items():
        assert row.q == pytest.approx(by_hand[arm], rel=1e-9)
        own = stats.ttest_rel(areas[arm], areas["grpo"]).confidence_interval(0.95)
        assert (row.gap.low, row.gap.high) == pytest.approx((own.low / headroom, own.high / headroom), rel=1e-6)
        assert (row.pairs, row.completions) == (SEEDS, 2.0 if arm == "twice" else 1.0)
    assert {arm: row.verdict for arm, row in rows.items()} == {
        "high": "better", "low": "worse", "same": "level", "twice": "better",
    }  # fmt: skip


@pytest.mark.slow
def test_by_chance_hardly_any_of_many_is_called_better(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted = fit_curve(bed.looks, [0.2, *[0.6] * 4], bed.bounds)
    monkeypatch.setattr("etude.runs.contest.fit_curve", lambda *curve: fitted)  # decides nothing, and takes longest
    rng = np.random.default_rng(1)
    called = 0
    for _ in range(200):
        areas = {arm: rng.normal(0.6, 0.1, 6) for arm in ("grpo", *map(str, range(10)))}
        called += any(row.verdict in ("better", "worse") for row in table(bed, _lines(areas), PUBLISHED))
    assert called / 200 < 0.08, "with no effect at all, a false discovery rate of 5% is the chance of any discovery"


def test_runs_that_are_all_alike_are_level(bed: Bed) -> None:
    areas = _areas(grpo=0.6)
    (row,) = table(bed, _lines({**areas, "copy": areas["grpo"]}), PUBLISHED)
    assert (row.verdict, row.q, row.gap.value) == ("level", 1.0, 0.0)


def test_a_bed_without_headroom_and_a_missing_baseline_are_refused(bed: Bed) -> None:
    ones = np.ones(SEEDS)
    with pytest.raises(ConfigError, match="leaves no headroom"):
        table(bed, _lines({"grpo": ones, "other": ones}), PUBLISHED)
    with pytest.raises(ConfigError, match="no runs of grpo"):
        table(bed, _lines({"other": ones}), PUBLISHED)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")
def test_what_is_there_is_not_trained_again_and_what_cannot_be_is_said(bed: Bed, tmp_path: Path) -> None:
    path, root = tmp_path / "kept.jsonl", tmp_path / "runs"
    arms = [both(bed, "reinforce"), both(bed, "dpo"), Arm(label="fast", method="grpo", changes={"optimizer.lr": 0.3})]
    lines = compete(bed, arms[:2], path, seeds=2, root=root, workers=1)
    assert settings_of(lines) == [PUBLISHED, TUNED]
    assert set(failures(lines)) == {"dpo"}
    trained = {p: p.stat().st_mtime_ns for p in root.rglob("metrics.jsonl")}
    lines = compete(bed, arms, path, seeds=2, root=root, workers=1)
    assert lines == list(JsonLines.read(path))
    assert len({p.parent for p in root.rglob("metrics.jsonl")} - {p.parent for p in trained}) == 1
    assert all(p.stat().st_mtime_ns == when for p, when in trained.items())
    assert {row.arm for row in table(bed, lines, PUBLISHED)} == {"reinforce", "fast"}
    (tuned,) = {line["tuned"]["optimizer.lr"] for line in lines if (line["arm"], line["setting"]) == ("grpo", TUNED)}
    assert tuned == 0.1, "of 0.001 and 0.1 the one that learns in 20 steps"
    path.write_text("".join(json.dumps({**line, "state": "another machine"}) + "\n" for line in lines))
    with pytest.raises(ConfigError, match="another state"):
        compete(bed, arms, path, seeds=2, root=root, workers=1)
