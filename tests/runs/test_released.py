"""`etude evaluate --released`: several runs on dated tasks, and what it does not go with."""

from __future__ import annotations

from pathlib import Path

import pytest

import etude
from etude.core.errors import ConfigError
from etude.runs.worlds import EvaluationOptions
from etude.runs.worlds.asked import released_asked
from etude.tasks.agents.mini_swe import MiniSWE
from etude.tasks.language.sums import Sums
from sandboxes import needs_sandbox


@needs_sandbox
@pytest.mark.slow
def test_runs_on_dated_tasks(tmp_path: Path) -> None:
    from etude.cli.data_collect import collect

    collect(out=tmp_path / "tasks.jsonl", good=4, bad=0, runs=2, quiet=True)
    found = etude.evaluate(
        "blank:1x16@code", "mini-swe", k=(1, 5), problems=4, split="test", max_tokens=2, released="2025-07-01",
        set=[f"task.collected={tmp_path / 'tasks.jsonl'}", "task.max_turns=1"],
    )["test"]  # fmt: skip
    dates = [p.info["created_at"] for p in MiniSWE(collected=str(tmp_path / "tasks.jsonl")).problems("test")]
    assert found["flagged"].value == sum(d < "2025-07-01" for d in dates) / 4
    assert found["resolved"].value == found["pass@1"].value == 0.0 <= found["pass@5"].value
    assert {name for name in found if name.startswith("resolved/2025")} == {f"resolved/{d[:7]}" for d in dates}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"released": "soon"}, "date like"),
        ({"released": "2025-01-01", "k": (1,)}, "two runs"),
        ({"released": "2025-01-01", "temperature": 0.0}, "two runs"),
        ({"released": "2025-01-01", "search": "best-of:2"}, "leave out --search"),
        ({"released": "2025-01-01"}, "sums/test/0 of sums has none"),
    ],
)
def test_what_it_does_not_go_with(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        released_asked(EvaluationOptions(**options), Sums(), ["test"])  # type: ignore[arg-type]
    assert released_asked(EvaluationOptions(), Sums(), ["test"]) == {}
