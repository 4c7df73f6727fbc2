"""Several runs on one page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from etude.core.errors import ConfigError, RunFolderError
from etude.evaluation.report_compare import names_of, write_comparison


def run(path: Path, pass_at_1: float, lr: float, steps: int = 3, **metrics: Any) -> Path:
    """A folder with all that a finished run has."""
    path.mkdir(parents=True)
    entry = {"value": pass_at_1, "low": pass_at_1 - 0.125, "high": pass_at_1 + 0.125}
    files = {
        "method": {"id": "grpo", "optimizer": {"part": "adam-w", "lr": lr}},
        "config": {"task": "compose", "steps": steps, "out": str(path)},
        "evaluation": {"after": {"test": {"pass@1": entry}}},
    }
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    said = [{"step": s, "seconds": 2.0 * s, "reward": s * pass_at_1, "loss": 1e-9 * s} for s in range(1, steps + 1)]
    rows = [{**row, **metrics} for row in said]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_numbers_differences_and_curves_of_two_runs(tmp_path: Path) -> None:
    a, b = run(tmp_path / "a", 0.5, 1e-3, alone=1.0), run(tmp_path / "b", 0.75, 1e-4, 5)
    html = write_comparison([a, b], tmp_path / "page.html").read_text()
    assert "<h1>a against b</h1>" in html
    assert '50.0% <span class="range">[37.5%, 62.5%]</span>' in html and "75.0%" in html
    assert '<tr><td>method</td><td class="n">grpo</td><td class="n">grpo</td></tr>' in html
    assert "<td>optimizer.<wbr>lr</td><td><code>0.001</code></td><td><code>0.0001</code></td>" in html
    assert "<td>steps</td>" in html and "<td>out</td>" not in html and html.count("<td>task</td>") == 1
    assert html.count("<svg") == 1  # reward; the loss is rounding, and one run alone has the other
    assert html.count('class="n">10 s') == 1  # of training: five steps of two seconds


def test_a_part_that_one_run_lacks_is_one_line_and_many_runs_have_a_short_headline(tmp_path: Path) -> None:
    places = [run(tmp_path / name, 0.5, 1e-3) for name in "abc"]
    for place, scale in zip(places, ({"part": "group-std", "epsilon": 1e-6}, None, None)):
        (place / "method.json").write_text(json.dumps({"id": "grpo", "advantages": {"scale": scale}}))
    html = write_comparison(places, tmp_path / "page.html").read_text()
    values = "".join(f"<td><code>{v}</code></td>" for v in ("group-std", "none", "none"))
    assert f"<td>advantages.<wbr>scale.<wbr>part</td>{values}" in html and "<td>advantages.<wbr>scale</td>" not in html
    assert "<h1>3 runs</h1>" in html


def test_a_reward_is_said_once_and_of_one_that_a_run_lacks_no_defaults(tmp_path: Path) -> None:
    places = [run(tmp_path / name, 0.5, 1e-3) for name in "ab"]
    own = {"part": "function", "function": "mine.py:good", "timeout": 10.0}
    for place, rewards in zip(places, ([own], [{**own, "function": "mine.py:better"}, {"part": "length", "limit": 9}])):
        (place / "method.json").write_text(json.dumps({"id": "grpo", "rewards": rewards}))
        (place / "config.json").write_text(json.dumps({"task": "x", "reward": rewards[0]["function"]}))
    html = write_comparison(places, tmp_path / "page.html").read_text()
    assert html.count("mine.py:good") == 1 and "<td>reward</td>" not in html
    assert "rewards.<wbr>1.<wbr>part" in html and "limit" not in html and "timeout" not in html


@pytest.mark.parametrize(
    ("model", "world", "shown"), [("tiny", "language", True), ("tiny", "control", False), ("runs/a", "control", True)]
)
def test_a_model_is_named_where_there_is_one(model: str, world: str, shown: bool, tmp_path: Path) -> None:
    places = [run(tmp_path / name, 0.5, 1e-3) for name in "ab"]
    for place in places:
        (place / "config.json").write_text(json.dumps({"task": "x", "model": model, "world": world}))
    assert ("<td>model</td>" in write_comparison(places, tmp_path / "page.html").read_text()) == shown


def test_runs_are_named_by_what_tells_them_apart() -> None:
    assert names_of([Path("x/a/seed-0"), Path("x/b/seed-0")]) == ["a/seed-0", "b/seed-0"]
    assert names_of([Path("runs/grpo"), Path("runs/dapo")]) == ["grpo", "dapo"]


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    a = run(tmp_path / "a", 0.5, 1e-3)
    with pytest.raises(ConfigError, match="two to 7 different runs, got 1"):
        write_comparison([a], tmp_path / "page.html")
    with pytest.raises(ConfigError, match="different runs, got 2"):
        write_comparison([a, tmp_path / "b" / ".." / "a"], tmp_path / "page.html")
    with pytest.raises(RunFolderError, match="is not a run folder"):
        write_comparison([a, tmp_path / "b"], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
