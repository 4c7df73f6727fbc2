"""Names of a task's fields (`--columns`, `--answer`, `--chat`, ...) with every verb that takes a task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command import Cli

import etude
from etude.core.errors import UnknownNameError

COLUMNS = "prompt=question,answer=solution"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    rows = [{"question": f"{a}+{b}=", "solution": rf"\\boxed{{{a + b}}}"} for a in range(1, 6) for b in range(1, 6)]
    Path("data.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return "data.jsonl"


def test_evaluate_in_the_shell_and_in_python(cli: Cli, data: str) -> None:
    assert "lacks the column 'prompt'" in cli("evaluate", "tiny", "--task", data, "--problems", 2, "--k", 1).sentence
    told = ["--columns", COLUMNS, "--answer", "boxed", "--problems", 2, "--k", 1, "--json"]
    answer = cli("evaluate", "tiny", "--task", data, *told)
    assert answer.code == 0, answer.err
    found = etude.evaluate("tiny", data, columns=COLUMNS, answer="boxed", problems=2, k=(1,))
    assert json.loads(answer.out)["test"]["pass@1"]["value"] == found["test"]["pass@1"].value == 0.0
    assert (
        "Did you mean 'question'?" in cli("evaluate", "tiny", "--task", data, "--columns", "prompt=questoin").sentence
    )


def test_tasks_show_knows_where_answers_are(cli: Cli, data: str) -> None:
    answer = cli("tasks", "show", data, "--columns", COLUMNS, "--answer", "boxed", "--count", 1)
    assert answer.code == 0 and "extractor=boxed" in answer.out.replace("\n", ""), answer.err
    assert "'last-number'" in cli("tasks", "show", data, "--columns", COLUMNS, "--answer", "last").sentence


@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")
def test_compare_and_tune(cli: Cli, data: str) -> None:
    small: list[Any] = ["--task", data, "--columns", COLUMNS, "--evaluate", 2, "--workers", 1]
    small += ["--set", "problems=2", "--set", "experience.size=2", "--set", "experience.max_tokens=4"]
    answer = cli("compare", "grpo", "rloo", *small, "--seeds", 1, "--steps", 1)
    assert answer.code == 0, answer.err
    assert "task.columns" in next(Path("runs").rglob("run.toml")).read_text()
    over = ["--over", "optimizer.lr=1e-4,1e-3", "--budget", 2]
    answer = cli("tune", "grpo", *small, *over, "--steps", 2, "--out", "search")
    assert answer.code == 0 and COLUMNS in Path("search/best.toml").read_text(), answer.err


def test_other_names_are_refused_with_the_nearest(data: str) -> None:
    for verb, told in ((etude.compare, {"methods": ["grpo", "rloo"]}), (etude.tune, {"method": "grpo", "over": "a=1"})):
        with pytest.raises(UnknownNameError, match=r"There is no option named 'colums'\. Did you mean 'columns'"):
            verb(task=data, colums=COLUMNS, **told)  # type: ignore[operator]  # each has its own signature
