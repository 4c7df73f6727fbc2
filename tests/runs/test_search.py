"""`tune`: the schedule of successive halving, what it draws, that it goes on, and that the best is the run it says."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etude
import processes
from etude.core.errors import ConfigError, UnknownNameError
from etude.runs import search
from etude.runs.jobs import Job, Workers
from etude.runs.search import Tuned, schedule, settings_of
from etude.runs.tuning import best_setting
from etude.runtime.jsonl import JsonLines


@pytest.mark.parametrize(
    ("count", "steps", "budget", "rounds"),
    [  # r_k = floor(B / (|S_k| ceil(log2 n))) of the paper's figure 1, by hand
        (8, 28, 96, [(8, 4), (4, 12), (2, 28)]),  # r = 96 / (8 * 3), 96 / (4 * 3), 96 / (2 * 3)
        (16, 150, 640, [(16, 10), (8, 30), (4, 70), (2, 150)]),  # r = 10, 20, 40, 80
        (2, 50, 100, [(2, 50)]),
    ],
)
def test_the_schedule_is_the_papers(count: int, steps: int, budget: int, rounds: list[tuple[int, int]]) -> None:
    assert schedule(count, steps) == rounds
    before = [0, *(r for _, r in rounds)]
    assert sum(size * (r - b) for (size, r), b in zip(rounds, before)) == budget
    assert len({size * (r - b) for (size, r), b in zip(rounds, before)}) == 1, "every round costs the same"


@pytest.mark.parametrize("count", range(2, 70))
def test_any_number_of_settings_is_halved_until_two_are_left(count: int) -> None:
    sizes, reached = zip(*schedule(count, 10_000))
    assert len(sizes) == int(np.ceil(np.log2(count))) and sizes[0] == count and sizes[-1] == 2
    assert all(b == -(-a // 2) for a, b in pairwise(sizes)) and reached[-1] == 10_000
    assert np.allclose(
        np.array(sizes) * np.diff([0, *reached]), sizes[-1] * (reached[-1] - (0, *reached)[-2]), rtol=0.05
    )


OVER = ["optimizer.lr=1e-5..1e-3", "objective.high=0.2,0.28", "epochs=1..4", "objective.low=0.1..0.2"]


def test_a_range_is_covered_evenly_and_choices_equally_often() -> None:
    found = settings_of(OVER, 8, 3)
    logs = sorted(np.log10([float(x["optimizer.lr"]) for x in found]))
    assert all(-5 + i / 4 <= x + 1e-2 and x - 1e-2 <= -5 + (i + 1) / 4 for i, x in enumerate(logs))  # eight equal parts
    assert sorted(x["objective.high"] for x in found) == ["0.2"] * 4 + ["0.28"] * 4
    assert sorted(x["epochs"] for x in found) == ["1", "1", "2", "2", "3", "3", "4", "4"]
    lows = sorted(float(x["objective.low"]) for x in found)
    assert all(0.1 + i / 80 <= x + 1e-3 and x - 1e-3 <= 0.1 + (i + 1) / 80 for i, x in enumerate(lows))
    assert found == settings_of(OVER, 8, 3) != settings_of(OVER, 8, 4)


def test_choices_that_fit_are_all_tried() -> None:
    assert settings_of(["a=1,2", "b=x,y,z"], 20) == [{"a": a, "b": b} for a in "12" for b in "xyz"]
    assert len(settings_of(["a=1,2", "b=x,y,z"], 5)) == 5


def test_the_best_of_a_sweep() -> None:
    assert best_setting({"a": 1.0, "b": 2.0, "c": 2.0}) == "b"
    assert best_setting({"a": float("nan"), "b": -3.0}) == "b"


pytestmark = pytest.mark.usefixtures("forked_workers")
SMALL: dict[str, Any] = {"over": "optimizer.lr=0.001,0.01,0.1,0.3", "steps": 6, "seeds": 2, "workers": 1, "quiet": True}


def lines(folder: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in x.items() if "second" not in k} for x in JsonLines.read(folder / "metrics.jsonl")]


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    """A search that was never stopped, in a folder of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("etude.runs.jobs.worker", processes.Worker)
        return etude.tune("grpo", "enumerable", out=tmp_path_factory.mktemp("searched") / "search", **SMALL)


@pytest.mark.slow
def test_a_search_from_its_start_to_the_file_that_repeats_its_best(
    searched: Tuned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, folder = searched, searched.folder
    table = json.loads((folder / "tune.json").read_text())
    assert [(len(each["scores"]), each["steps"]) for each in table["rounds"]] == [(4, 2), (2, 6)]
    first, last = ({int(k): v for k, v in each["scores"].items()} for each in table["rounds"])
    assert set(last) == set(sorted(first, key=lambda i: -first[i])[:2])
    assert found.best == max(last, key=lambda i: last[i]) and found.score == last[found.best]
    assert found.spent == pytest.approx((4 * 2 + 2 * 4) / 6)
    assert "4 settings were tried, in as many steps as 2.67 whole runs." in found.sentence()
    again = etude.train(config=found.config, out=tmp_path / "again", quiet=True)
    own = folder / f"setting-{found.best:02}"
    assert lines(again.folder) == lines(own) and len(lines(own)) == 6
    assert again.evaluation["after"] == json.loads((own / "evaluation.json").read_text())["after"]
    stopped = next(i for i in range(4) if i not in last)
    assert len(lines(folder / f"setting-{stopped:02}")) == 2

    trained: list[Job] = []
    monkeypatch.setattr(Workers, "start", lambda self, job: trained.append(job))
    assert etude.tune("grpo", "enumerable", out=folder, **SMALL).best == found.best
    assert not trained, "what is in the table is not trained again"
    with pytest.raises(ConfigError, match="holds a search with another steps"):
        etude.tune("grpo", "enumerable", out=folder, **{**SMALL, "steps": 8})


@pytest.mark.slow
def test_a_search_that_was_stopped_goes_on(searched: Tuned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its first round, and after it."""
    save, saved = search._Search._save, list[int]()

    def stop(self: search._Search) -> None:
        saved.append(len(self.rounds))
        save(self)
        if len(saved) != 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(search._Search, "_save", stop)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            etude.tune("grpo", "enumerable", out=tmp_path / "parts", **SMALL)
        (tmp_path / "parts/setting-00").mkdir(exist_ok=True)  # as a run that has begun leaves it
    monkeypatch.setattr(search._Search, "_save", save)
    parts = etude.tune("grpo", "enumerable", out=tmp_path / "parts", **SMALL)
    assert saved == [0, 0, 1] and (parts.best, parts.rounds) == (searched.best, searched.rounds)


@pytest.mark.slow
def test_a_setting_that_fails_does_not_end_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = Workers.start

    def spoilt(self: Workers, job: Job) -> None:
        if job.folder.name == "setting-02":
            job.folder.mkdir(parents=True, exist_ok=True)
            (job.folder / "notes.txt").write_text("not a run")
        start(self, job)

    monkeypatch.setattr(Workers, "start", spoilt)
    found = etude.tune("grpo", "enumerable", out=tmp_path / "search", **SMALL)
    assert list(found.failed) == [2] and "is not a run" in found.failed[2]
    assert found.rounds[0]["scores"]["2"] is None and "2" not in found.rounds[1]["scores"]
    assert "1 of them failed" in found.sentence()


def test_what_holds_something_else_is_no_place_for_a_search(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for place in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(ConfigError, match="holds something that is no search: choose another --out"):
            etude.tune("grpo", "enumerable", out=place, **SMALL)


def test_a_value_out_of_its_range_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="high"):
        etude.tune("dapo", "enumerable", out=tmp_path / "search", **{**SMALL, "over": "objective.high=0.2,0.28,nan"})
    assert not (tmp_path / "search").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"over": "optimizer.lr"}, "FIELD=LOW..HIGH"),
        ({"over": "optimizer.lr=1e-3..1e-5"}, "from a number to a larger one"),
        ({"over": "optimizer.lr=a..b"}, "from a number to a larger one"),
        ({"over": ["optimizer.lr=1,2", "optimizer.lr=3,4"]}, "names a field twice"),
        ({"over": "optimizer.lr=0.1"}, "a single setting"),
        ({"over": "optimizer.rate=0.1,0.2"}, "no field of AdamW named 'rate'"),
        ({"budget": 1}, "at least 2"),
        ({"steps": 1}, "too few"),
        *(({name: 0}, f"{name} must be a whole number of at least 1") for name in ("steps", "seeds", "evaluate")),
        ({"seed": -1}, "seed must be a whole number of at least 0"),
        ({"metric": "pass@9"}, "There are: pass@1"),
    ],
)
def test_what_makes_no_search_is_refused_before_anything_is_written(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises((ConfigError, UnknownNameError), match=message):
        etude.tune("grpo", "enumerable", out=tmp_path / "search", **{**SMALL, **changes})
    assert not (tmp_path / "search").exists()


@pytest.mark.slow
def test_a_run_goes_as_far_as_it_is_told_and_on(tmp_path: Path) -> None:
    options: dict[str, Any] = {"seeds": 2, "steps": 5, "quiet": True, "set": {"optimizer.schedule": "linear"}}
    whole = etude.train("grpo", "enumerable", out=tmp_path / "whole", **options)
    part = etude.train("grpo", "enumerable", out=tmp_path / "part", until=2, **options)
    assert (part.steps, part.notes[0]) == (2, "Stopped early: it was to go to step 2 for now.")
    assert "until" not in (part.folder / "run.toml").read_text()
    assert etude.resume(part.folder, until=4, quiet=True).steps == 4
    assert etude.resume(part.folder, quiet=True).steps == 5
    assert lines(part.folder) == lines(whole.folder)
