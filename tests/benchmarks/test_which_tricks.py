"""Which tricks help: what the page says first."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import which_tricks  # noqa: E402
from which_tricks import SWEPT, TWICE, Columns, columns, monday, rivals, section  # noqa: E402

from etude.core.errors import ConfigError  # noqa: E402
from etude.core.registry import get_method  # noqa: E402
from etude.evaluation.intervals import Interval  # noqa: E402
from etude.runs.beds import load_bed  # noqa: E402
from etude.runs.contest import Row  # noqa: E402


def row(arm: str, gap: float, verdict: str, completions: float = 1.0) -> Row:
    interval = Interval(gap, gap - 0.1, gap + 0.1, 0.95, "paired t")
    return Row(
        arm=arm, setting="tuned", pairs=6, area=0.5, end=0.5, gap=interval, q=0.01, verdict=verdict, ceiling=1.0,
        rate=1.0, completions=completions, tuned={},
    )  # fmt: skip


def test_whoever_was_better_with_more_samples_is_said_so() -> None:
    arms = {
        SWEPT: Columns(row(SWEPT, 0.4, "better"), None),
        "dapo": Columns(row("dapo", 0.1, "level", 1.9), row("dapo", 0.3, "better", 1.87)),
        "dr-grpo": Columns(row("dr-grpo", 0.6, "better"), row("dr-grpo", 0.2, "better", 1.04)),
        "capo": Columns(row("capo", 0.5, "better", 2.0), row("capo", -0.2, "worse", 2.0)),
    }
    said = monday({"language/some": arms})
    assert "gave +0.40 (+0.30 to +0.50) of the headroom. Of" in said
    assert "Of 3 methods as published, 2 gave more (dr-grpo, capo)." in said
    assert "2 were better than GRPO (dapo with 1.9 times the samples, dr-grpo), 0 level, 1 worse" in said


def test_what_twice_the_samples_give_is_said_beside_it() -> None:
    arms = {
        SWEPT: Columns(row(SWEPT, 0.4, "better"), None),
        TWICE: Columns(row(TWICE, 0.6, "better", 2.0), row(TWICE, 0.2, "better", 2.0)),
        "dapo": Columns(row("dapo", 0.1, "level", 1.9), row("dapo", 0.3, "better", 1.87)),
    }
    said = monday({"language/some": arms})
    assert "Of 1 methods as published, 0 gave more. After the same sweep 1 were better than GRPO (dapo" in said
    assert said.endswith(
        "0 stayed open. GRPO itself, with twice the problems in a step: +0.20 (+0.10 to +0.30), "
        "and nothing that was better is above that."
    )
    arms["rft"] = Columns(None, row("rft", 0.31, "better", 1.87))
    assert monday({"language/some": arms}).endswith("+0.20 (+0.10 to +0.30), and rft above that.")


def test_the_baseline_may_have_twice_the_problems_where_they_are_sampled() -> None:
    def problems(bed: str) -> list[object]:
        return [arm.changes.get("problems") for arm in rivals(load_bed(bed)) if arm.label == TWICE]

    assert problems("language/compose-easy") == [2 * 16]  # its recipe says 16
    assert problems("language/compose-hard") == [2 * get_method("grpo", "language").problems]
    assert problems("enumerable/twin") == []


def test_what_cannot_be_timed_is_said_and_costs_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def cost(name: str, bed: object) -> float:
        if name == "rlp":
            raise ConfigError("It needs segments.")
        return 1.25

    monkeypatch.setattr(which_tricks, "cost", cost)
    monkeypatch.setattr(which_tricks, "COSTS", tmp_path / "costs.json")
    which_tricks.measure_costs(["dapo", "rlp", "rloo"])
    assert json.loads((tmp_path / "costs.json").read_text())["ratios"] == {"dapo": 1.25, "rloo": 1.25}
    assert capsys.readouterr().out == "rlp was left out: It needs segments.\n"


def test_who_has_not_been_run_on_a_bed_is_named() -> None:
    bed = load_bed("language/compose-hard")
    (line,) = [part for part in section(bed, columns(bed), {}).splitlines() if part.startswith("Not run here yet")]
    waiting = line.removeprefix("Not run here yet: ").rstrip(".").split(", ")
    assert "rloo" in waiting and not {"grpo", "dapo", "one-shot-rlvr"} & {*waiting}
