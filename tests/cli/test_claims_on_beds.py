"""Claims on a bed: arms are tuned by the same sweep and trained with the same seeds; dead beds and twins are void."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import Cli
from test_claims import commit, git

from etude.core.claims import Claim, Measure
from etude.core.errors import UnknownNameError
from etude.runs import beds, claims, jobs, measuring, tuning
from etude.runs.jobs import Job
from etude.runs.plans import write_plan

pytestmark = pytest.mark.slow
BED = """
about = "Two prompts."
task = "enumerable"
set = { "task.prompts" = 2, "task.length" = 1 }
steps = 6

[test]
every = 3

[sweep]
"optimizer.lr" = [0.01, 0.1]
"""
MINE = """
from etude.core.claims import Claim, Measure
from etude.methods.rlvr.grpo import grpo

SAID = dict(statement="It is better.", bed="small.toml", baseline="grpo", measures=(Measure(name="area"),))
mine = grpo.replace(id="mine", advantages=grpo.advantages, claim=Claim(**SAID, equal=("steps", "updates")))
same = grpo.replace(id="same", claim=Claim(**SAID, sweep={}))
STILL = {"optimizer.lr": 1e-9}
dead = grpo.replace(id="dead", claim=Claim(**SAID, changes=STILL, baseline_changes=STILL, sweep={}))
twice = grpo.replace(id="twice", claim=Claim(**SAID, sweep={}, runs=2))
more = grpo.replace(id="more", epochs=4, claim=Claim(**SAID, equal=("updates",), sweep={}))
"""


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with methods, a small bed and a plan for each, committed."""
    folder = tmp_path_factory.mktemp("planned")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("mine.py").write_text(MINE)
        Path("small.toml").write_text(BED)
        Path(".gitignore").write_text("__pycache__\nruns\n")
        git("init", "-q")
        for name in (f"mine.py:{method}" for method in ("mine", "same", "dead", "more", "twice")):
            write_plan(claims.folder_of(name), name, claims.claim_of(name)[1])
        commit("plans")
    return folder


@pytest.fixture
def project(planned: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of one's own; runs are made in this process."""

    def here(jobs: Sequence[Job], workers: int | None = None, quiet: bool = False) -> None:
        for job in jobs:
            assert job.finished or cli(*job.command()).code == 0

    for module in (beds, jobs, tuning):
        monkeypatch.setattr(module, "run_jobs", here)
    shutil.copytree(planned, tmp_path, dirs_exist_ok=True)
    return tmp_path


def verdict(cli: Cli, name: str) -> dict[str, object]:
    answer = cli("claims", "run", f"mine.py:{name}")
    assert answer.code == 0, answer.err
    found: dict[str, object] = json.loads(Path(f"claims/{name}/verdict.json").read_text())
    return found


def test_arms_are_tuned_by_their_areas_and_paired_by_seed(cli: Cli, project: Path) -> None:
    record = verdict(cli, "mine")
    areas = record["tuning"]["areas"]  # type: ignore[index]
    assert areas["arm"] == areas["baseline"], "the same method"
    assert list(areas["arm"]) == ["optimizer.lr=0.01", "optimizer.lr=0.1"]
    best = max(areas["arm"], key=areas["arm"].__getitem__)
    assert record["tuning"]["best"]["arm"] == {"optimizer.lr": float(best.partition("=")[2])}  # type: ignore[index]
    rows = [json.loads(line) for line in Path("claims/mine/runs.jsonl").read_text().splitlines()]
    pairs = {s: [row["pair"] for row in rows if row.get("setting") == s] for s in ("published", "tuned")}
    assert [p["seed"] for p in pairs["tuned"]] == list(range(1000, 1006))
    runs = [p.parent for p in Path("runs/beds").rglob("evaluation.json") if p.parent.name == "seeds-1000-to-1005"]
    measured = [json.loads((run / "evaluation.json").read_text())["after"] for run in runs]
    ends = [next(iter(each.values()))["pass@1"]["members"] for each in measured]
    assert [p["arm"]["end"] for p in pairs["tuned"]] in ends
    assert [p["baseline"]["end"] for p in pairs["published"]] in ends
    assert all(p["budgets"]["updates"] == [6.0, 6.0] for p in pairs["tuned"])


def test_a_score_may_be_the_mean_of_several_runs(cli: Cli, project: Path) -> None:
    assert "runs = 2" in Path("claims/twice/plan.toml").read_text()
    assert "runs" not in Path("claims/same/plan.toml").read_text()
    each, both = ({r["pair"]["seed"]: r["pair"] for r in rows(cli, name)} for name in ("same", "twice"))
    assert sorted(each) == sorted(both) == list(range(1000, 1006))
    # runs 1000 to 1011 make the six pairs, and 1000 to 1005 are those of the other claim's
    for pair in range(3):
        runs = [each[1000 + 2 * pair + i]["arm"]["area"] for i in range(2)]
        assert both[1000 + pair]["arm"]["area"] == pytest.approx(sum(runs) / 2, abs=1e-9)


def rows(cli: Cli, name: str) -> list[dict[str, Any]]:
    """Lines of a claim's runs."""
    assert cli("claims", "run", f"mine.py:{name}").code == 0
    return [json.loads(line) for line in Path(f"claims/{name}/runs.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(("name", "gate"), [("same", "identical"), ("dead", "learned"), ("more", "budget")])
def test_what_could_not_have_shown_it_is_void(cli: Cli, project: Path, name: str, gate: str) -> None:
    record = verdict(cli, name)
    assert record["verdict"] == "void"
    assert gate in [void["gate"] for void in record["published"]["void"]]  # type: ignore[index]
    assert claims.check(f"mine.py:{name}") == []


def test_what_training_logged_can_be_measured(cli: Cli, project: Path) -> None:
    bed = beds.load_bed("small.toml")
    made = beds.runs_of(bed, "grpo", 2)
    beds.run_jobs(made)
    lines = [json.loads(line) for line in (made[0].folder / "metrics.jsonl").read_text().splitlines()]
    each = np.array([line["members"]["entropy"] for line in lines])  # after steps 1 to 6
    at = np.linspace(0.15, 6, 40)
    along = np.array([np.interp(at, np.arange(1, 7), column) for column in each.T])
    np.testing.assert_allclose(measuring.measured(bed, "mean:entropy", made), along.mean(1))
    np.testing.assert_allclose(measuring.measured(bed, "last:entropy", made), along[:, 30:].mean(1))
    with pytest.raises(UnknownNameError, match="measure on a bed"):
        measuring.measured(bed, "entropy", made)
    with pytest.raises(UnknownNameError, match=r"runs logged named 'entropies'\. Did you mean .*'entropy'"):
        measuring.measured(bed, "last:entropies", made)


def test_as_many_settings_of_other_fields(cli: Cli, project: Path) -> None:
    """A baseline without the method's field is tuned over as many settings of its own."""
    claim = Claim(
        statement="A.", bed="small.toml", baseline="grpo", measures=(Measure(name="end"),),
        sweep={"optimizer.lr": (0.01, 0.1)}, baseline_sweep={"epochs": (1, 2)},
    )  # fmt: skip
    found = tuning.tune(beds.load_bed("small.toml"), "dr-grpo", claim)
    assert list(found["areas"]["arm"]) == ["optimizer.lr=0.01", "optimizer.lr=0.1"]
    assert list(found["areas"]["baseline"]) == ["epochs=1", "epochs=2"]
