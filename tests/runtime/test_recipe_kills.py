"""A recipe killed where its runs hand on what they made, in the second round too, ends as if it had never stopped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from test_replay_kills import outcome
from test_runtime_kill import When, killed

import etude
from etude.core.episodes import Problem
from etude.core.recipe import Recipe
from etude.core.task import LanguageTask
from etude.runtime import checkpoints, environment, round_trip
from etude.stages.chain import Collect, Derive, Train

pytestmark = pytest.mark.usefixtures("one_thread", "still_clock")


class Shown(Derive):
    """The answers themselves, in another order for every seed."""

    def rows(self, problems: Sequence[Problem], task: LanguageTask, seed: int) -> list[dict[str, Any]]:
        turned = [*problems[seed % len(problems) :], *problems[: seed % len(problems)]]
        return [{"prompt": p.prompt, "answer": p.answer, "completion": p.answer} for p in turned]


LEARN = Train(called="sft", method="sft", steps=1, task="{shown}", set=("problems=2",))
ROUNDS = Recipe(
    id="rounds",
    runs=(
        Shown(called="shown", problems=3), LEARN, Collect(called="right", problems=4, samples=2, temperature=0.5),
        LEARN.replace(called="on", task="{right}", begins="sft"),
    ),
    repeat=2,
)  # fmt: skip


def go(path: Path) -> None:
    if path.exists():
        etude.resume(path, quiet=True)
    else:
        etude.train(ROUNDS, "compose", seed=3, out=path, evaluate=0, quiet=True)


def before(place: str) -> When:
    """Ahead of what gives a file or folder its name."""
    return lambda name, args: name == "rename" and str(args[1]).endswith(place)


def behind(place: str, operation: str = "rename") -> When:
    """Ahead of the first change after a file or folder was made."""
    seen: list[bool] = []

    def at(name: str, args: tuple[Any, ...]) -> bool:
        found = bool(seen)
        if name == operation and str(args[-1]).endswith(place):
            seen.append(True)
        return found

    return at


ROOT = "rounds/checkpoints/"
KILLS = {
    "rows of the first round half written": behind("01-shown", "make_folder"),
    "completions half written": behind("03-right", "make_folder"),
    "logs of a round half put together": behind("04-on/report.html"),
    "a round not handed on": before(ROOT + "step-2"),
    "a round handed on": behind(ROOT + "step-2"),
    "rows of the second round there": behind("05-shown/data.jsonl"),
    "completions of the second round without their name": before("07-right/data.jsonl"),
}


@pytest.mark.slow
def test_killed_at_one_hand_on_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = environment.record(0)
    monkeypatch.setattr(environment, "record", lambda seed: recorded)
    monkeypatch.setattr(round_trip, "room", lambda *_: False)
    whole, cut = tmp_path / "whole" / "rounds", tmp_path / "cut" / "rounds"
    go(whole)
    for where, at in KILLS.items():
        assert killed(cut, at, torn="half" in where, run=go), where
        assert not any(map(checkpoints.verify, checkpoints.steps(cut / "checkpoints"))), where
    go(cut)
    made = sorted(path.relative_to(whole) for path in whole.rglob("data.jsonl"))
    assert len(made) == 4 == len({(whole / path).read_bytes() for path in made})
    assert all((cut / path).read_bytes() == (whole / path).read_bytes() for path in made)
    for name in ("02-sft", "04-on", "06-sft", "08-on", "."):
        assert outcome(cut / name) == outcome(whole / name), name
    assert not list(cut.rglob("*.tmp")) and not list(cut.rglob("tmp-*"))
