"""What runs used: every token that the policy drew, whatever became of it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import etude
from etude.policies.conversation import Conversation
from etude.runs.measuring import budgets


def used(folder: Path) -> dict[str, Any]:
    return dict(budgets([SimpleNamespace(folder=folder, members=0)]))  # type: ignore[list-item]


def test_tokens_are_those_that_were_drawn_or_else_those_that_were_learned_from(tmp_path: Path) -> None:
    drawn = {"step": 1, "rows": 4.0, "completion_length": 5.0, "sampled_tokens": 64.0}  # 44 of them were thrown away
    shown = {"step": 2, "rows": 3.0, "completion_length": 7.0}  # a supervised step draws nothing
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (drawn, shown)))
    (tmp_path / "method.json").write_text(json.dumps({"epochs": 2, "minibatches": 3}))
    assert used(tmp_path) == {"steps": [2.0], "updates": [12.0], "completions": [7.0], "tokens": [64.0 + 21.0]}


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("dapo", {"problems": 2, "experience.size": 2}),  # groups without a difference are drawn again
        ("ghpo", {"problems": 4, "experience.size": 2}),  # a second look at groups that are all wrong
        ("spo-tree", {"problems": 2}),
    ],
)
def test_of_a_run_all_are_counted(
    method: str, fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, sample = list[int](), Conversation._sample

    def counted(*asked: Any) -> Any:
        found = sample(*asked)
        drawn.extend(len(c.tokens) for c in found)
        return found

    monkeypatch.setattr(Conversation, "_sample", counted)
    run = etude.train(method, "sums", steps=1, set=fields, evaluate=0, out=tmp_path / "run", quiet=True)
    (line,) = run.metrics
    assert used(run.folder)["tokens"] == [sum(drawn)]
    assert method != "ghpo" or sum(drawn) > line["rows"] * line["completion_length"]  # rows are those that were kept
