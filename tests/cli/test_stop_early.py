"""`--stop-when` and `--minutes`: a run that ends before its last step, evaluated and reported, and can go on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import TINY, Cli, tiny


@pytest.mark.slow
def test_a_run_stops_when_it_is_good_enough(cli: Cli) -> None:
    answer = cli("train", "grpo", *tiny(3), "--evaluate-every", 1, "--stop-when", "test/pass@1 >= 0", "--out", "x")
    assert answer.code == 0, answer.err
    assert "Stopped early: test/pass@1 is" in answer.err
    folder = Path("x")
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 1
    assert "after" in json.loads((folder / "evaluation.json").read_text())
    assert (folder / "report.html").is_file() and not (folder / "FINISHED").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--stop-when", "pass@1"), "must be a metric, one of"),
        (("--stop-when", "test/pas@1 > 0.5", "--evaluate-every", 1), "Did you mean 'test/pass@1'"),
        (("--stop-when", "tset/pass@1 > 0.5", "--evaluate-every", 1), "Did you mean 'test/pass@1'"),
        (("--stop-when", "no better pass@1 in 3", "--evaluate-every", 1), "Did you mean 'test/pass@1'"),
        (("--stop-when", "test/pass@1 > 0.5"), "say how often with --evaluate-every"),
        (("--stop-when", "rewrd > 0.5"), "Did you mean 'reward'"),
        (("--minutes", "0"), "minutes"),
        (("--minutes", "-3"), "minutes"),
    ],
)
def test_what_cannot_be_stopped_at_is_refused(cli: Cli, flags: tuple[str, ...], message: str) -> None:
    answer = cli("train", "grpo", *TINY, *flags, "--out", "x")
    assert answer.code != 0
    assert message in answer.sentence
    assert Path("x").exists() == (flags[1] == "rewrd > 0.5")  # what training logs is known after its first step
