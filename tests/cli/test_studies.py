"""Studies: files that are read strictly, cells that are trained once, and the table that follows from them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from command import Cli
from scipy import stats

from etude.core.errors import ConfigError, UnknownNameError
from etude.core.registry import get_method
from etude.runs import studies as runs_studies
from etude.runs.beds import CONFIRMING, load_bed
from etude.runs.measuring import by_level
from etude.runs.studies import load_study, studies
from etude.runs.study_table import grid, table
from etude.runtime.jsonl import JsonLines

BED = """
about = "Two prompts."
task = "enumerable"
set = { "task.prompts" = 2, "task.length" = 1, "optimizer.lr" = 0.1 }
steps = 6

[test]
every = 3

[sweep]
"optimizer.lr" = [0.01, 0.1]
"""
STUDY = """
title = "Small"
about = "What wrong rewards do."
beds = ["BED"]
baseline = "grpo"
seeds = 3

[recipes.wrong]
set = { rewards = "incorrect-reward" }

[recipes.down]
with = ["negative-only"]
set = { epochs = 2 }

[recipes.impossible]
with = ["dpo"]
"""


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A study of one bed, in files."""
    (tmp_path / "small.toml").write_text(BED)
    path = tmp_path / "mine.toml"
    path.write_text(STUDY.replace("BED", str(tmp_path / "small.toml")))
    return path


def test_every_study_can_be_read_and_its_beds_and_recipes_are_there() -> None:
    assert studies()
    for name in studies():
        study = load_study(name)
        assert get_method(study.baseline)
        for bed in study.beds:
            assert load_bed(bed).goal and not study.bed(bed).sweep and study.bed(bed).baseline == study.baseline


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("seeds = 3", "seedz = 3"), "no key of .*mine.toml named 'seedz'. Did you mean 'seeds'"),
        (("set = { epochs = 2 }", "sett = {}"), r"key of .*mine.toml, \[recipes.down\] named 'sett'"),
        (("seeds = 3", "seeds = 0"), "mine.toml: seeds must be"),
        (("[recipes.down]", "[recipes.grpo]"), "has the name of the baseline"),
        (('title = "Small"', ""), "lacks a key: .*title"),
        (("seeds = 3", "seeds = "), "no TOML"),
    ],
)
def test_a_study_that_does_not_fit_is_refused(written: Path, change: tuple[str, str], message: str) -> None:
    written.write_text(written.read_text().replace(*change))
    with pytest.raises(ConfigError, match=message):
        load_study(str(written))


def test_a_study_that_is_not_there_is_answered_with_the_nearest(cli: Cli) -> None:
    with pytest.raises(UnknownNameError, match="model-task-alignment"):
        load_study("model-task-alignmen")
    assert "There is no study" in cli("studies", "run", "none.toml").err


def test_gains_and_differences_are_paired_by_seed(written: Path) -> None:
    """Against scipy's paired t interval; another order of lines, and a seed that only one arm has, change nothing."""
    random, n = np.random.default_rng(0), 5
    start, base, down = (random.uniform(0.2, 0.4, n + 1) + shift for shift in (0.0, 0.3, 0.1))

    def line(arm: str, i: int, end: float) -> Mapping[str, Any]:
        return {"arm": arm, "setting": "published", "seed": CONFIRMING + i, "curve": [start[i], end + i / 8, end],
                "end": end, "tokens": 1000.0 + i}  # fmt: skip

    lines = [line("grpo", i, base[i]) for i in reversed(range(n))] + [line("down", i, down[i]) for i in range(n + 1)]
    lines.append({"arm": "impossible", "setting": "published", "failed": "it cannot be"})
    rows = {row["recipe"]: row for row in table(load_study(str(written)), "small", lines)}
    assert list(rows) == ["grpo", "down", "impossible"]
    assert rows["impossible"] == {"bed": "small", "recipe": "impossible", "failed": "it cannot be"}
    assert (rows["down"]["seeds"], rows["grpo"]["seeds"]) == (n, n) and "against" not in rows["grpo"]
    assert rows["down"]["tokens"] == 1002
    assert rows["down"]["fell"] == pytest.approx((0 + 1 + 2 + 3 + 4) / 8 / n)  # below the best on the way
    for found, (x, y) in (
        (rows["grpo"]["gain"], (base[:n], start[:n])),
        (rows["down"]["gain"], (down[:n], start[:n])),
        (rows["down"]["against"], (down[:n], base[:n])),
    ):
        wanted = stats.ttest_rel(x, y).confidence_interval(0.95)
        assert found == pytest.approx([float((x - y).mean()), wanted.low, wanted.high], abs=6e-5)


def test_levels_have_gains_and_differences_of_their_own(written: Path) -> None:
    """The same intervals of what is right of each level, where a test has several."""
    random, n = np.random.default_rng(1), 4
    start, base, down = (random.uniform(0.1, 0.9, n) for _ in range(3))

    def line(arm: str, i: int, end: float) -> Mapping[str, Any]:
        shares = {"hard": [start[i], end], "easy": [0.5, 0.75]}
        return {"arm": arm, "setting": "published", "seed": CONFIRMING + i, "curve": [0, 1], "end": 1, "levels": shares}

    lines = [line(arm, i, ends[i]) for arm, ends in (("grpo", base), ("down", down)) for i in range(n)]
    rows = {row["recipe"]: row["levels"] for row in table(load_study(str(written)), "small", lines)}
    assert list(rows["down"]) == ["hard", "easy"] and rows["down"]["easy"]["gain"] == [0.25, 0.25, 0.25]
    assert rows["grpo"]["hard"]["end"] == pytest.approx(base.mean(), abs=6e-5) and "against" not in rows["grpo"]["hard"]
    wanted = stats.ttest_rel(down, base).confidence_interval(0.95)
    assert rows["down"]["hard"]["against"] == pytest.approx([(down - base).mean(), *wanted], abs=6e-5)


FACTORS = """
[factors.reward]
right = {}
wrong = { set = { rewards = "incorrect-reward" }, steps = 3 }

[factors.passes]
once = {}
twice = { with = ["negative-only"], set = { epochs = 2 } }
"""


def test_every_level_of_a_factor_meets_every_one_of_the_others(written: Path) -> None:
    written.write_text(written.read_text() + FACTORS)
    study = load_study(str(written))
    assert list(study.recipes)[3:] == ["right, once", "right, twice", "wrong, once", "wrong, twice"]
    arms = {arm.label: arm for arm in study.arms()}
    both = arms["wrong, twice"]
    assert (both.method, both.changes, both.steps) == (
        "grpo+negative-only", {"rewards": "incorrect-reward", "epochs": 2}, 3
    )  # fmt: skip
    assert arms["right, once"].changes == {} and arms["right, once"].steps == 0
    rows = [{"recipe": "right, once", "end": 0.5}, {"recipe": "wrong, twice", "end": 0.25}, {"recipe": "down"}]
    assert grid(study, rows) == [["passes", "right", "wrong"], ["once", "0.500", ""], ["twice", "", "0.250"]]
    written.write_text(written.read_text() + "\n[factors.more]\nsome = { set = { epochs = 3 } }\n")
    with pytest.raises(ConfigError, match="the levels of 'right, twice, some' both say epochs: let one"):
        load_study(str(written))


def test_a_recipe_with_the_name_of_a_combination_is_refused(written: Path) -> None:
    written.write_text(written.read_text() + FACTORS + '[recipes."wrong, once"]\nset = { epochs = 2 }\n')
    with pytest.raises(ConfigError, match="'wrong, once' is a recipe and a combination of levels too"):
        load_study(str(written))


def test_what_a_study_takes_is_said_before_it_is_run(written: Path, cli: Cli) -> None:
    """Four arms of six steps, one of them of three in the second case; three seeds, or two at the least."""
    shown = cli("studies", "show", written).out
    assert f"Not run yet: etude studies run {written}\n  12 runs, 72 training steps in all" in shown
    assert "--seeds 2, the fewest: 8 runs, 48 training steps in all" in shown
    written.write_text(written.read_text().replace("[recipes.down]", "[recipes.down]\nsteps = 3"))
    assert load_study(str(written)).work(2) == (8, 42)


def test_there_is_no_grid_without_two_factors(written: Path) -> None:
    assert grid(load_study(str(written)), [{"recipe": "down", "end": 0.5}]) == []


@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")
def test_a_recipe_has_steps_of_its_own(written: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its curve ends after them, while the others go on."""
    monkeypatch.chdir(written.parent)
    written.write_text(written.read_text().replace("[recipes.down]", "[recipes.down]\nsteps = 3"))
    assert cli("studies", "run", str(written), "--seeds", "2", "--workers", "1").code == 0
    lines = list(JsonLines.read(written.parent / "mine" / "small.jsonl"))
    steps = {line["arm"]: (line["steps"], len(line["curve"])) for line in lines if "failed" not in line}
    assert steps == {"grpo": (6.0, 3), "wrong": (6.0, 3), "down": (3.0, 2)}


@pytest.mark.slow
def test_a_run_says_what_is_right_of_each_level(tmp_path: Path) -> None:
    bed = load_bed("language/compose-apart")
    levels = [p.level for p in bed.goal.problems("test")[:6]]
    assert len({*levels}) > 1
    solved = {"before": {"test": [0] * 6}, "after": {"test": [2 * (name == "level2") for name in levels]}}
    (tmp_path / "evaluation.json").write_text(json.dumps({"solved": solved}))
    job: Any = SimpleNamespace(folder=tmp_path)
    (found,) = by_level(bed, [job])
    assert found == {name: (0.0, float(name == "level2")) for name in sorted({*levels})}  # of two samples each
    (some,) = by_level(bed, [job], 2)  # of two samples, any
    assert some == found
    one = {"before": {"test": [0] * 6}, "after": {"test": [1] * 6}}
    (tmp_path / "evaluation.json").write_text(json.dumps({"solved": one}))
    assert [{*by_level(bed, [job], k)[0].values()} for k in (1, 2)] == [{(0.0, 0.5)}, {(0.0, 1.0)}]
    assert by_level(replace(bed, set={"task.tested": [2]}), [job]) == []
    (tmp_path / "evaluation.json").write_text(json.dumps({"before": {}, "after": {}}))
    assert by_level(bed, [job]) == []


def test_a_recipe_may_have_a_method_of_its_own(written: Path) -> None:
    written.write_text(written.read_text().replace("[recipes.down]", '[recipes.down]\nmethod = "reinforce"'))
    assert {arm.label: arm.method for arm in load_study(str(written)).arms()} == {
        "wrong": "grpo", "down": "reinforce+negative-only", "impossible": "grpo+dpo",
    }  # fmt: skip


def test_without_runs_of_the_baseline_there_is_no_table(written: Path) -> None:
    study = load_study(str(written))
    with pytest.raises(ConfigError, match="grpo could not be trained on small: it cannot be"):
        table(study, "small", [{"arm": "grpo", "setting": "published", "failed": "it cannot be"}])


@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")
def test_a_study_is_run_by_one_command_and_goes_on(cli: Cli, written: Path) -> None:
    """Cells that are there are not trained again, more seeds are added, and the table is derived from the lines."""
    run = ("studies", "run", written, "--workers", 1)
    assert "needs at least 2 seeds" in cli(*run, "--seeds", 1).err
    assert "Not run yet" in cli("studies", "show", written).out
    answer = cli(*run)
    assert answer.code == 0, answer.err
    assert "impossible was left out" in answer.out
    lines, kept = written.parent / "mine" / "small.jsonl", written.with_suffix(".json")
    before, text = lines.read_text(), kept.read_text()
    rows = {row["recipe"]: row for row in json.loads(text)["rows"]}
    assert rows["grpo"]["gain"][0] > 0 > rows["wrong"]["gain"][0]
    trained = {p: p.stat().st_mtime_ns for p in Path("runs").rglob("metrics.jsonl")}
    assert cli(*run).code == 0
    assert (lines.read_text(), kept.read_text()) == (before, text)
    assert {p: p.stat().st_mtime_ns for p in Path("runs").rglob("metrics.jsonl")} == trained
    first, shown = answer.out.splitlines()[1], cli("studies", "show", written).out
    assert first in shown and "+" in shown
    assert {line["setting"] for line in JsonLines.read(lines)} == {"published"}


def test_a_start_is_measured_by_what_its_bed_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where answers are scored and never right, pass@k of 0 says nothing."""
    study = load_study("rl-llm-technical-survey")
    bed = study.bed(study.beds[0])
    found = {"pass@1": 0.0, "pass@16": 0.0, "reward": 1.5}
    scores = {bed.split: {name: SimpleNamespace(value=value) for name, value in found.items()}}
    monkeypatch.setattr("etude.runs.evaluate.evaluate", lambda *_, **__: scores)
    monkeypatch.setattr(runs_studies, "start_of", lambda *_: "")
    assert bed.metric == "reward" and runs_studies.start_scores(study, bed, Path()) == {"reward": 1.5}
    solved = runs_studies.start_scores(study, replace(bed, metric="pass@1"), Path())
    assert solved == {"pass@1": 0.0, "pass@16": 0.0}


@pytest.mark.slow
def test_a_table_is_drawn(cli: Cli, tmp_path: Path) -> None:
    """One picture, or one for each bed."""
    answer = cli("studies", "show", "one-shot-rlvr", "--picture", tmp_path / "one.png")
    assert answer.code == 0 and str(tmp_path / "one.png") in answer.out
    assert cli("studies", "show", "lite-ppo", "--picture", tmp_path / "many.png").code == 0
    beds = load_study("lite-ppo").beds
    assert {p.name for p in tmp_path.glob("*.png")} == {"one.png", *(f"many-{Path(bed).stem}.png" for bed in beds)}
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in tmp_path.glob("*.png"))


def test_studies_are_listed(cli: Cli) -> None:
    answer = cli("studies")
    assert answer.code == 0 and "model-task-alignment" in answer.out
    assert "[recipes.random]" in cli("studies", "show", "model-task-alignment").out


def test_studies_as_json(cli: Cli) -> None:
    told = {entry["id"]: entry for entry in json.loads(cli("studies", "--json").out)}
    assert told.keys() == studies().keys()
    known = load_study("model-task-alignment")
    entry = told[known.id]
    assert entry["recipes"] == [known.baseline, *known.recipes] and entry["beds"] == list(known.beds)
    assert entry["paper"] == "arXiv:2508.21188" and isinstance(entry["done"], bool)
