"""Runs on data that is streamed: the numbers of the whole file, and of a run that was never stopped."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import etude
from etude.core.errors import CheckpointError, ConfigError, DataError

ROWS = [{"prompt": f"{n}+1=", "completion": f"{n + 1}", "answer": n + 1} for n in range(30)]
PAIRS = [{"prompt": f"{n}+1=", "chosen": f"{n + 1}", "rejected": f"{n}"} for n in range(30)]
TIMES = ("seconds", "tokens_per_second", "time")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ETUDE_CACHE", "")


def write(name: str, rows: list[Any]) -> str:
    data = "".join(json.dumps(r) + "\n" for r in rows).encode()
    Path(name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return name


def metrics(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith(TIMES)} for line in lines]


def train(out: str, method: str, task: str, steps: int = 4, **told: Any) -> Path:
    told = {"evaluate": 4, "evaluate_samples": 1, "seed": 3, "quiet": True, **told}
    return etude.train(method, task, out=out, steps=steps, **told).folder


@pytest.mark.slow
@pytest.mark.parametrize(("method", "rows"), [("sft", ROWS), ("dpo", PAIRS), ("grpo", ROWS)])
def test_a_streamed_file_trains_to_the_numbers_of_the_whole_one(method: str, rows: list[Any]) -> None:
    task, few = write("data.jsonl", rows), {"problems": 4} | ({"experience.size": 2} if method == "grpo" else {})
    told = {"set": few, "steps": 2, "evaluate": 4 if method != "dpo" else 0}
    whole, streamed = train("whole", method, task, **told), train("streamed", method, task, stream=True, **told)
    assert metrics(streamed) == metrics(whole)
    if method != "dpo":
        assert [(f / "evaluation.json").read_text() for f in (streamed, whole)] == [
            (whole / "evaluation.json").read_text()
        ] * 2
    assert '"task.stream" = "true"' in (streamed / "run.toml").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["data.jsonl", "data.jsonl.gz"])
def test_resume_equals_never_having_stopped(name: str) -> None:
    task, few = write(name, ROWS), {"problems": 5, "task.buffer": 8}
    straight = train("straight", "sft", task, 9, stream=True, set=few)
    stopped = train("stopped", "sft", task, 9, stream=True, set=few, until=4)
    assert len(metrics(stopped)) == 4
    etude.resume(stopped, quiet=True)
    assert metrics(stopped) == metrics(straight)
    weights = [next(f.glob("checkpoints/step-*9/model/model.safetensors")) for f in (straight, stopped)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    again = etude.train(config=stopped / "run.toml", out="again", quiet=True).folder
    assert metrics(again) == metrics(straight)


@pytest.mark.slow
def test_resume_refuses_another_file_and_a_bad_row_leaves_a_checkpoint() -> None:
    stopped = train("stopped", "sft", write("data.jsonl", ROWS), stream=True, until=2)
    write("data.jsonl", [*ROWS, {**ROWS[0], "prompt": "new"}])
    with pytest.raises(CheckpointError, match=r"data.jsonl changed\. Put back what it was trained with"):
        etude.resume(stopped, quiet=True)
    task = write("data.jsonl.gz", [*ROWS[:25], {"prompt": "", "completion": "", "answer": ""}])
    few = {"problems": 5, "task.buffer": 10, "task.test_fraction": 0}
    with pytest.raises(DataError, match=r"data.jsonl.gz:26: prompt is empty"):
        train("bad", "sft", task, 20, stream=True, set=few, evaluate=0)
    assert len(metrics(Path("bad"))) == 4 and list(Path("bad/checkpoints").glob("step-*4"))


def test_what_is_no_data_has_nothing_to_stream() -> None:
    with pytest.raises(ConfigError, match="stream"):
        train("none", "grpo", "compose", stream=True)
