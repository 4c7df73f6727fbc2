"""`docs/your-tools.md`, followed step by step in an empty folder."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

import etude
from etude.core.episodes import Problem, Segment
from etude.core.part import part_class
from etude.experience.calls import CallForm
from etude.experience.toolbox import ToolCalls
from etude.tasks import resolve_task
from language_toys import Toy

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "your-tools.md").read_text(encoding="utf-8")
FILES = ("shop_tools.py", "shop_check.py", "shop.jsonl", "shop_calls.jsonl")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in FILES:
        shutil.copy(DOCS / "examples" / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(begins: str) -> dict[str, Any]:
    """What a command of the page says, as Python has it: flags by name, fields under `set`."""
    line = next(c for c in PAGE.replace("\\\n", " ").split("\n") if c.startswith(f"$ etude train {begins}"))
    words = shlex.split(line)[3:]
    told: dict[str, Any] = {"method": words[0], "set": []}
    for flag, value in zip(words[1::2], words[2::2], strict=True):
        if flag == "--set":
            told["set"].append(value)
        else:
            told[flag.removeprefix("--")] = int(value) if value.isdigit() else value
    return told


def test_the_files_are_those_that_are_shown(folder: Path) -> None:
    blocks = re.findall(r"```(?:python|json)\n(.*?)```", PAGE, re.DOTALL)
    assert Path("shop_tools.py").read_text() == blocks[0] and Path("shop_check.py").read_text() == blocks[2]
    rows = Path("shop.jsonl").read_text().splitlines()
    assert len(rows) == 10 and blocks[1].splitlines() == rows[:2]


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_the_commands_of_the_page_train_with_calls_in_the_report(folder: Path) -> None:
    """With one worked call, which a small model learns by heart, in place of ten."""
    first = json.loads(Path("shop_calls.jsonl").read_text().splitlines()[0])
    Path("shop_calls.jsonl").write_text(json.dumps({**first, "id": "a"}) + "\n" + json.dumps({**first, "id": "b"}))
    shown, run = command("sft"), command("grpo --task shop.jsonl --tools shop_tools.py:price")
    quick = ("optimizer.lr=6e-3", "problems=2", "task.test_fraction=0")
    etude.train(**{**shown, "set": [*shown["set"], *quick], "steps": 80, "model": "blank:1x64x2", "quiet": True})
    told = {**run, "set": [*run["set"], "problems=1"], "steps": 1, "evaluate": 0, "quiet": True}
    etude.train(**told)
    episodes = [json.loads(line) for line in Path("run/episodes.jsonl").read_text().splitlines()]
    told = [(e["reward"], [(s["role"], s["text"]) for s in e["segments"][1:3]]) for e in episodes]
    called = [r for r, turns in told if turns == [("assistant", "price(item='lamp')"), ("tool", "7")]]
    assert len(called) >= 4 and min(called) >= 0.1
    report = Path("run/report.html").read_text()
    assert "<small>tool</small>" in report and "price(item=&#x27;lamp&#x27;)" in report
    assert "shop_tools.py" in json.loads(Path("run/inputs.json").read_text())["python"], "and it is kept with the run"


@pytest.mark.slow
def test_what_goes_wrong_is_said_in_the_words_of_the_page(folder: Path) -> None:
    world: Any = Toy(("x",), tools=ToolCalls(functions="shop_tools.py")).played_in()
    world.reset(Problem("1", "x"), 0)
    for call in ('{"name": "prize"}', '{"name": "items", "arguments": {"most": "9"}}',
                 '{"name": "price", "arguments": {"item": "sofa"}}'):  # fmt: skip
        (answer,) = world.step(Segment("assistant", f"<tool_call>{call}</tool_call>")).segments
        assert f"`{answer.text}`" in PAGE


def test_forms_and_fields_are_those_of_the_page() -> None:
    forms = re.findall(r"^\| `([a-z-]+-calls)`", PAGE, re.MULTILINE)
    assert len(forms) == 4 and all(issubclass(part_class(name), CallForm) for name in forms)
    box = ToolCalls()
    for field, value in re.findall(r"task\.tools\.(seconds|longest|turns)=(\d+)` ?(?:characters|turns|\|)", PAGE):
        assert getattr(box, field) == float(value), field


def test_an_environment_s_own(folder: Path) -> None:
    block = re.findall(r"```python\n(from etude.core.task import SingleTurn.*?)```", PAGE, re.DOTALL)[0]
    space: dict[str, Any] = {}
    exec(block, space)
    world: Any = Toy(("x",), world=space["Desk"], tools=ToolCalls()).played_in()
    world.reset(Problem("1", "x"), 0)
    said = '<tool_call>{"name": "open", "arguments": {"drawer": "top"}}</tool_call>'
    assert world.step(Segment("assistant", said)).segments[0].text == "pen"
    assert resolve_task("shop.jsonl").max_turns == 1
