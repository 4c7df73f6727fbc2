"""Runs over enumerable policies through the ordinary verbs: a folder, exact figures, the same numbers when resumed."""

from __future__ import annotations

from pathlib import Path

import pytest

import etude
from etude.core.errors import ConfigError
from etude.runs.train import resume

pytestmark = pytest.mark.usefixtures("one_thread")
OPTIONS = {"task": "enumerable", "steps": 6, "seeds": 4, "quiet": True}


@pytest.mark.slow
def test_a_run_reports_exact_figures_of_every_member(tmp_path: Path) -> None:
    done = etude.train("rloo", out=str(tmp_path / "run"), **OPTIONS)
    after = done.evaluation["after"]["exact"]
    assert len(after["pass@4"]["members"]) == 4
    assert after["reward"]["value"] > done.evaluation["before"]["exact"]["reward"]["value"]
    assert done.metrics[-1]["members"]["reward"] == after["reward"]["members"]
    found = etude.evaluate(tmp_path / "run")["exact"]
    assert found["pass@4"].value == pytest.approx(after["pass@4"]["value"])
    assert (tmp_path / "run" / "report.html").is_file()


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    whole = etude.train("grpo", out=str(tmp_path / "whole"), **OPTIONS)
    etude.train("grpo", out=str(tmp_path / "half"), **{**OPTIONS, "steps": 3})
    again = resume(tmp_path / "half", steps=6, quiet=True)
    assert (whole.checkpoint / "state.safetensors").read_bytes() == (
        again.checkpoint / "state.safetensors"
    ).read_bytes()


def test_what_tables_have_no_use_for_is_refused(tmp_path: Path) -> None:
    for options in ({"population": ("lr=0.1,0.2",)}, {"adapter": "lora"}):
        with pytest.raises(ConfigError, match="enumerable"):
            etude.train("grpo", out=str(tmp_path / "run"), **OPTIONS, **options)
