"""Comparisons and claims at equal divergence: every arm is run with each value, and measured against its start."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

import etude
from etude.cli.app import app
from etude.core.claims import Claim, Measure
from etude.core.errors import ConfigError
from etude.evaluation.frontiers import Frontier, matched
from etude.evaluation.pairs import Pair
from etude.runs import beds, comparing, frontiers, jobs
from etude.runs.beds import load_bed
from etude.runs.frontiers import with_frontiers
from etude.runs.jobs import Job
from etude.runs.plans import Plan, read_plan, to_toml

BED = """
about = "Two steps."
task = "compose"
steps = 2
set = { "problems" = 4, "experience.size" = 4, "optimizer.lr" = 1e-3 }

[test]
problems = 6
samples = 2
every = 2
"""
COEFFICIENT = "regularizers.kl-to-reference.coefficient"
SAID = {
    "statement": "It earns more at equal divergence.", "bed": "small.toml", "baseline": "grpo+kl-to-reference",
    "measures": (Measure(name="frontier", smallest=0.02), Measure(name="frontier:kl", role="mechanism")),
    "sweep": {},
}  # fmt: skip


def claim(**changes: object) -> Claim:
    return Claim(**{**SAID, "frontier": {COEFFICIENT: (0.0, 3.0)}, **changes})  # type: ignore[arg-type]


def here(jobs: Sequence[Job], workers: int | None = None, quiet: bool = False) -> None:
    """Runs in this process."""
    for job in jobs:
        if not job.finished:
            app(job.command(), result_action="return_value")


@pytest.mark.slow
def test_both_arms_are_traced_from_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(BED)
    for module in (beds, jobs, frontiers):
        monkeypatch.setattr(module, "run_jobs", here)
    asked = claim(baseline_frontier={"optimizer.lr": (1e-4, 2e-3)})
    bare = [Pair(seed=1000, arm={"end": 0.1}, baseline={"end": 0.2})]
    bed = load_bed("small.toml")
    (pair,) = with_frontiers(bare, bed, "dr-grpo+kl-to-reference", asked, [1000], {}, root=tmp_path / "runs")
    assert (pair.arm["end"], pair.baseline["end"]) == (0.1, 0.2), "what was measured stays"
    assert (
        pair.start["frontier"]
        == json.loads(next(tmp_path.rglob("evaluation.json")).read_text())["before"]["test"]["pass@1"]["value"]
    )
    made = {p.parent: json.loads(p.read_text())["kl"] for p in tmp_path.rglob("divergence.json")}
    assert len(made) == 4 and all(kl > 0 for kl in made.values())
    for arm, scores in (("dr-grpo", pair.arm), ("grpo", pair.baseline)):
        own = {run: kl for run, kl in made.items() if run.parent.name.startswith(f"{arm}+")}
        assert len(own) == 2 and scores["frontier:kl"] == max(own.values())
    curves = []
    for arm in ("dr-grpo", "grpo"):
        own = [run for run in made if run.parent.name.startswith(f"{arm}+")]
        looks = [json.loads((run / "evaluation.json").read_text()) for run in own]
        ends = [look["after"]["test"]["pass@1"]["value"] for look in looks]
        curves.append(Frontier([made[run] for run in own], ends, looks[0]["before"]["test"]["pass@1"]["value"]))
    assert [pair.arm["frontier"], pair.baseline["frontier"]] == pytest.approx(matched(*curves), abs=1e-9)


@pytest.mark.slow
def test_methods_are_compared_at_equal_divergence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "run_jobs", here)
    found = etude.compare(
        ["grpo+kl-to-reference", "dr-grpo+kl-to-reference"], "compose", frontier=f"{COEFFICIENT}=0,3", seeds=1, steps=2,
        evaluate=6, out=tmp_path, set=["problems=4", "experience.size=4", "optimizer.lr=1e-3"],
    )  # fmt: skip
    kept = json.loads((found.folder / "comparison.json").read_text())
    curves = []
    for arm in ("grpo", "dr-grpo"):
        runs = [p.parent for p in tmp_path.rglob("divergence.json") if p.parent.parent.name.startswith(f"{arm}+")]
        assert len(runs) == 2
        looks = [json.loads((run / "evaluation.json").read_text()) for run in runs]
        ends = [look["after"]["test"]["pass@1"]["value"] for look in looks]
        divergences = [json.loads((run / "divergence.json").read_text())["kl"] for run in runs]
        curves.append(Frontier(divergences, ends, looks[0]["before"]["test"]["pass@1"]["value"]))
    scores = [next(iter(arm["scores"].values())) for arm in kept["arms"].values()]
    assert [s[0] for s in scores] == pytest.approx(matched(*curves), abs=1e-6)
    assert kept["axis"].startswith("KL") and "Frontiers" in (found.folder / "comparison.html").read_text()


@pytest.mark.parametrize(
    ("frontier", "sentence"),
    [("objective.high", "a field with two values or more"), ("objective.high=0.2", "a field with two values or more"),
     ("=0.2,0.3", "a field with two values or more"), ("objective.hig=0.2,0.3", "Did you mean 'high'"),
     ("objective.high=0.2,-1", "objective.high|high must be")],
)  # fmt: skip
def test_a_frontier_that_cannot_be_traced_is_refused(tmp_path: Path, frontier: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        etude.compare(["grpo", "dr-grpo"], "compose", frontier=frontier, out=tmp_path)
    assert not list(tmp_path.iterdir())


def test_control_has_no_frontier(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cartpole is no task of language models"):
        etude.compare(["a2c", "ppo"], "cartpole", frontier="optimizer.lr=1e-3,1e-2", out=tmp_path)


@pytest.mark.slow
def test_it_is_for_language_models() -> None:
    with pytest.raises(ConfigError, match="is no bed of language models"):
        with_frontiers([], load_bed("control/acrobot"), "a2c", claim(), [], {})


def test_a_plan_says_the_frontier(tmp_path: Path) -> None:
    said = claim(baseline_frontier={"optimizer.lr": [1e-4, 2e-3]})
    (tmp_path / "plan.toml").write_text(to_toml(Plan("mine", said)))
    again = read_plan(tmp_path).claim
    assert (again.frontier, again.baseline_frontier) == ({COEFFICIENT: [0.0, 3.0]}, {"optimizer.lr": [1e-4, 2e-3]})
    assert again.measures == said.measures
    assert "frontier" not in to_toml(Plan("mine", claim(frontier={}, measures=(Measure(name="end"),))))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [({"frontier": {}}, "is measured over several settings of both arms: say them, as in"),
     ({"measures": (Measure(name="end"),)}, "and a measure 'frontier' says what came of it"),
     ({"baseline_frontier": {"optimizer.lr": (1e-3,)}}, "must have as many runs"),
     ({"frontier": {}, "baseline_frontier": {"optimizer.lr": (1e-3,)}}, "must have as many runs")],
)  # fmt: skip
def test_what_does_not_fit_is_refused(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        claim(**changes)
