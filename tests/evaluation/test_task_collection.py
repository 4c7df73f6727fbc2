"""Collecting tasks: each reason to refuse a candidate, what is kept, and what kept tasks are worth."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from etude.core.episodes import Segment
from etude.core.errors import ConfigError, DataError
from etude.evaluation.seeded_candidates import SPOILT, flaky, mistaken, seeded
from etude.evaluation.task_collection import Candidate, Refused, collect, ran_off, read_off
from etude.tasks.agents.mini_swe import MiniSWE
from sandboxes import needs_sandbox

FILES = {"sums.py": "def two():\n    return 1\n\ndef three():\n    return 3\n"}
PATCHED = {"sums.py": FILES["sums.py"].replace("1", "2")}
GOOD = Candidate(
    "1", "2025-03-04", "two() should be 2", FILES, PATCHED, ("assert three() == 3", "assert two() == 2"),
)  # fmt: skip


# What can be read off


def test_limits_are_where_they_are_said_to_be() -> None:
    assert read_off(GOOD) is None
    assert read_off(replace(GOOD, issue="0123456789")) is Refused.SHORT_ISSUE
    assert read_off(replace(GOOD, issue="  0123456789  ")) is Refused.SHORT_ISSUE
    assert read_off(replace(GOOD, issue="0123456789x")) is None
    more = {f"more_{n}.py": "" for n in range(15)}
    fifteen = {k: v for k, v in more.items() if k != "more_0.py"}
    assert read_off(replace(GOOD, patched=PATCHED | fifteen)) is None
    assert read_off(replace(GOOD, patched=PATCHED | more)) is Refused.MANY_FILES
    assert read_off(replace(GOOD, patched=PATCHED | {"a.txt": ""})) is None, "half is not less than half"
    assert read_off(replace(GOOD, patched=PATCHED | {"a.txt": "", "b.md": ""})) is Refused.NOT_PYTHON
    assert read_off(replace(GOOD, changes=0)) is read_off(replace(GOOD, changes=2)) is Refused.SEVERAL_CHANGES
    assert read_off(replace(GOOD, patched=FILES)) is Refused.NO_FILES
    assert replace(GOOD, patched={}).touched == ["sums.py"], "what is taken away is touched"


def test_what_runs_say() -> None:
    up, down = (True, True), (False, True)
    assert ran_off([down] * 5, [up] * 5) is None
    assert ran_off([down] * 5, [up] * 4 + [down]) is ran_off([up] + [down] * 4, [up] * 5) is Refused.FLAKY
    assert ran_off([up] * 5, [up] * 5) is Refused.NOTHING_FAILS
    assert ran_off([down] * 5, [down] * 5) is ran_off([down] * 5, [(False, False)] * 5) is Refused.UNRELATED


# What is run


@needs_sandbox
@pytest.mark.slow
def test_a_task_has_the_tests_that_its_change_mends_and_those_that_it_keeps() -> None:
    broken = replace(GOOD, id="2", tests=(*GOOD.tests, "assert two() == 5", "assert two() == 1"))
    found = collect([GOOD, broken], runs=2)
    assert not found.refused and [p.id for p in found.kept] == ["1", "2"]
    for problem in found.kept:  # what passes neither time, or only before, is not asked
        assert problem.info["fail_to_pass"] == ["assert two() == 2"]
        assert problem.info["pass_to_pass"] == ["assert three() == 3"]
        assert sorted(problem.info["tests"]) == sorted(GOOD.tests) and problem.info["created_at"] == "2025-03-04"


@needs_sandbox
@pytest.mark.slow
def test_all_that_were_spoilt_are_refused_for_that_reason_and_no_other() -> None:
    candidates, wrong = seeded(12, 1)
    assert set(wrong.values()) == set(SPOILT) == set(Refused) and len(candidates) == 12 + len(Refused)
    found = collect(candidates)
    assert found.refused == wrong and len(found.kept) == 12
    assert found.counts == dict.fromkeys(map(str, Refused), 1)
    assert not mistaken([p.id for p in found.kept], dict(found.refused), wrong)


@needs_sandbox
@pytest.mark.slow
def test_tests_that_differ_between_runs_are_found_on_either_side() -> None:
    both, after = flaky(GOOD), replace(flaky(GOOD), id="2")
    before_only = {**after.files, "coins.py": "def coin(n):\n    return 1\n"}
    found = collect([both, replace(after, files=before_only)])
    assert found.refused == {"1": Refused.FLAKY, "2": Refused.FLAKY}


@needs_sandbox
@pytest.mark.slow
def test_the_right_change_is_worth_one_and_none_nothing_on_every_kept_task(tmp_path: Path) -> None:
    """In the environment of the collected file, where all tests are run."""
    from etude.cli.data_collect import collect as command

    file = tmp_path / "tasks.jsonl"
    command(out=file, good=8, bad=0, runs=2, seed=3, quiet=True)
    task = MiniSWE(collected=str(file))
    problems = task.problems("test")
    assert len(problems) == 8 and all(p.info["fail_to_pass"] for p in problems)
    assert task.problems("train")[0] == MiniSWE().problems("train")[0]
    for problem in problems:
        game = task.environment()
        game.reset(problem, 0)
        empty = game.step(Segment("assistant", " submit"))
        game.reset(problem, 0)
        game.state["files"] = dict(problem.info["fixed"])
        gold = game.step(Segment("assistant", " submit"))
        assert (gold.reward, empty.reward) == (1.0, 0.0) and not game.state["known"]


@needs_sandbox
@pytest.mark.slow
def test_candidates_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from etude.cli.data_collect import collect as command

    given, out = tmp_path / "candidates.jsonl", tmp_path / "tasks.jsonl"
    rows = [
        {"id": f"{n}", "created_at": "2025-03-04", "issue": issue, "files": FILES, "patched": PATCHED,
         "tests": list(GOOD.tests)}
        for n, issue in enumerate(("two() should be 2", "short"))
    ]  # fmt: skip
    given.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command(given, out=out, runs=2)
    said = capsys.readouterr().out
    assert [json.loads(line)["id"] for line in out.read_text().splitlines()] == ["0"]
    figures = dict(line.rsplit(maxsplit=1) for line in said.splitlines() if line[-1:].isdigit())
    assert figures["candidates"] == "2" and figures["too short an issue"] == figures["kept"] == "1"
    assert sum(map(int, figures.values())) == 4, "no other reason"
    given.write_text(json.dumps({"id": "1", "what": 2}) + "\n")
    with pytest.raises(DataError, match="line 1: a candidate has created_at, files, issue, patched, tests too"):
        command(given, out=out)
    with pytest.raises(ConfigError, match="1,000 packages to make candidates of, and 1,010 were"):
        command(out=out, good=1000, bad=1)
    with pytest.raises(ConfigError, match="--runs must be at least 2"):
        command(out=out, runs=1)


def test_a_file_of_tasks_that_is_not_there_or_empty(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="etude data collect --out"):
        MiniSWE(collected=str(tmp_path / "none.jsonl")).problems("test")
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(DataError, match="has no tasks"):
        MiniSWE(collected=str(tmp_path / "empty.jsonl")).problems("test")
    (tmp_path / "wrong.jsonl").write_text('{"id": "1"}\n')
    with pytest.raises(DataError, match="line 1: a task has created_at, fail_to_pass"):
        MiniSWE(collected=str(tmp_path / "wrong.jsonl")).problems("test")
