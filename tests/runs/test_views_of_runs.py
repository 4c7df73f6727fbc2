"""A policy is evaluated in the view that it was trained in, unless another is asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import etude
from etude.core.errors import ConfigError, UnknownNameError
from etude.core.registry import get_method
from etude.experience import rollout as playing
from etude.experience.views import FullHistory, LastTurns, View, view_of
from etude.runs.training import compose_method
from etude.runs.worlds.views import view_asked
from etude.tasks import resolve_task

FEW: dict[str, Any] = {"problems": 1, "samples": 1, "k": 1}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[View]]]:
    """A run of a step whose policy sees the last turn alone, and the views that it was evaluated in."""
    seen, rollout = list[View](), playing.rollout

    def played(starts: Any, context: Any, sampling: Any, view: View) -> Any:
        seen.append(view)
        return rollout(starts, context, sampling, view)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(playing, "rollout", played)
        out = tmp_path_factory.mktemp("view") / "run"
        etude.train(
            "grpo", "keys", out=out, steps=1, evaluate=1, quiet=True, preset=False,
            set=["problems=1", "experience.size=2", "experience.view=last-turns", "experience.view.turns=1"],
        )  # fmt: skip
        yield out, seen


@pytest.mark.slow
def test_while_it_is_trained_and_later(run: tuple[Path, list[View]]) -> None:
    out, seen = run
    assert seen and {*seen} == {LastTurns(turns=1)}
    for asked, view in (
        (None, LastTurns(turns=1)), ("last-turns", LastTurns(turns=1)), ("last-turns,turns=3", LastTurns(turns=3)),
        ("full-history", FullHistory()), (LastTurns(turns=2), LastTurns(turns=2)),
    ):  # fmt: skip
        seen.clear()
        etude.evaluate(str(out), view=asked, **FEW)
        assert seen and {*seen} == {view}


@pytest.mark.slow
def test_one_turn_is_seen_whole(run: tuple[Path, list[View]]) -> None:
    out, seen = run
    seen.clear()
    etude.evaluate(str(out), "sums", **FEW)
    assert {*seen} == {FullHistory()}
    with pytest.raises(ConfigError, match="--view is what is seen before each turn, and task 'sums' has one"):
        etude.evaluate(str(out), "sums", view="last-turns", **FEW)


def test_what_is_no_view_is_said() -> None:
    task: Any = resolve_task("keys")
    assert view_asked(None, "tiny", task) == view_of(get_method("sft"), task) == FullHistory()
    assert view_asked("summary-at,limit=40,most=0", "tiny", task).fields()["most"] == 0
    with pytest.raises(UnknownNameError, match="Did you mean 'last-turns'"):
        view_asked("last-turn", "tiny", task)
    with pytest.raises(ConfigError, match="turns must be a whole number of at least 1"):
        view_asked("last-turns,turns=0", "tiny", task)
    with pytest.raises(ConfigError, match="view takes text like"):
        view_asked(3, "tiny", task)  # type: ignore[arg-type]


def test_a_recipes_checkpoint_says_which_run_it_comes_from(tmp_path: Path) -> None:
    task: Any = resolve_task("keys")
    checkpoint = tmp_path / "checkpoints" / "step-1"
    checkpoint.mkdir(parents=True)
    (tmp_path / "method.json").write_text(json.dumps(get_method("qwenlong-l1-5").to_json()))
    assert view_asked(None, str(checkpoint), task) == FullHistory()
    link = compose_method("grpo", ["experience.view=last-turns", "experience.view.turns=2"])
    (checkpoint / "method.json").write_text(json.dumps(link.to_json()))
    assert view_asked(None, str(checkpoint), task) == LastTurns(turns=2)
