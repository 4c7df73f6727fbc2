"""`etude tune`, `etude report --compare` and `--callback`, as they are typed."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import TINY, Cli


@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")
def test_settings_are_searched_and_pages_compared(cli: Cli) -> None:
    flags = ("--steps", 4, "--seeds", 2, "--workers", 1, "--out", "search")
    answer = cli("tune", "grpo", "--task", "enumerable", "--over", "optimizer.lr=0.01,0.1,0.3", *flags)
    assert answer.code == 0, answer.err
    shown = " ".join(answer.out.split())
    assert "3 settings were tried" in shown and "exact/pass@1 after each round" in shown
    assert "etude train --config search/best.toml --seed 1000" in shown
    assert Path("search/best.toml").read_text().startswith("# The best setting of search: exact/pass@1")
    page = cli("report", "--compare", "search/setting-00", "search/setting-01")
    assert page.code == 0 and page.out.strip() == "search/comparison.html", page.err
    assert "<h1>setting-00 against setting-01</h1>" in Path("search/comparison.html").read_text()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("report", "a", "b"), "A report is of one run, got 2; for one page of several, say --compare."),
        (("report",), "A report is of one run, got 0"),
        (("report", "a", "--out", "x.html"), "--out says where the page of --compare goes"),
        (("report", "--compare", "a"), "two to 7 different runs, got 1"),
        (("report", "--compare", "a", "b"), "a is not a run folder"),
        (("tune", "grpo", "--over", "optimizer.lr=0.1"), "leaves a single setting"),
        (("train", *TINY, "--callback", "nowhere.py:Slack"), "nowhere.py"),
        (("train", *TINY, "--until", "0"), "until"),
    ],
)
def test_what_cannot_be_done_is_said(cli: Cli, command: tuple[str, ...], message: str) -> None:
    answer = cli(*command)
    assert answer.code != 0 and message in answer.sentence, answer.err
    assert not Path("runs").exists()
