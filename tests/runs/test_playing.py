"""What evaluations of control cost: a tenth of the training unless asked, and no episode goes on for ever."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etude
from environment_toys import TOYS
from etude.core.population import Member
from etude.core.registry import get_method
from etude.evaluation.control import play
from etude.experience.gymnasium_vector import GymnasiumVector
from etude.loops.on_policy import OnPolicyLoop
from etude.runs import playing
from etude.runs.playing import Plays, plays
from etude.runs.training import Options
from etude.runs.worlds import control
from etude.runtime import progress
from etude.runtime.progress import Counter
from etude.tasks.control.environment import EnvironmentTask


def loop_of(length: int, members: int = 2) -> OnPolicyLoop:
    """Members in environments whose episodes have this length, before their first step."""
    method: Any = get_method("ppo", "control")
    method = method.replace(experience=method.experience.replace(environments=2, steps=20), epochs=1)
    task = EnvironmentTask(TOYS, arguments={"length": length})
    return OnPolicyLoop(method, task, [Member(s) for s in range(members)], 1)


def test_an_evaluation_has_room_for_as_many_episodes_as_its_share_of_a_tenth() -> None:
    """Of 100,000 steps a tenth in two evaluations of two modes: 2,500 steps each."""
    asked = plays(Options(steps=100_000), [[500], [200, 200], [100, 140, 60], [], [900, 1]])
    assert list(asked.episodes) == [5, 10, 20, 5, 5]
    assert list(asked.longest) == [1000, 1000, 1000, 1000, 1800]
    assert asked.side_by_side == 5
    larger = plays(Options(steps=1_000_000), [[500], []])
    assert list(larger.episodes) == [20, 5] and list(larger.longest) == [5000, 5000]


def test_evaluations_in_between_share_the_tenth() -> None:
    """Nine of them, one before and one after: 100,000 / 11 / 2 steps, 45 episodes of a hundred steps."""
    many = plays(Options(steps=1_000_000, evaluate_every=100_000), [[100], [300], [1000]])
    assert list(many.episodes) == [20, 15, 5]


def test_who_asks_for_episodes_gets_them() -> None:
    asked = plays(Options(steps=1_000, evaluate=50), [[10_000], []])
    assert asked == Plays([50, 50], [10_000, 10_000])
    assert list(plays(Options(steps=500_000, evaluate=50), [[]]).longest) == [50_000]
    assert "usual" not in asked.sentence("after") and "Playing 50 episodes of each member after" in asked.sentence(
        "after"
    )


@pytest.mark.slow
def test_evaluations_of_a_run_take_no_more_than_a_tenth_of_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Episodes of 10 steps in a run of 4,000: 100 steps for each of two modes, before and after."""
    loop, steps = loop_of(10), []
    step = GymnasiumVector.step

    def counted(self: GymnasiumVector, actions: np.ndarray) -> Any:
        steps.append(actions.shape[1])
        return step(self, actions)

    monkeypatch.setattr(GymnasiumVector, "step", counted)
    options = Options(steps=4_000, quiet=True)
    control.evaluation(loop, loop.task, options, "before")
    assert sum(steps) == 2 * 5 * 10
    loop.step()
    steps.clear()
    measured = control.evaluation(loop, loop.task, options, "after")
    assert sum(steps) == 2 * 10 * 10
    assert measured.scores["test"]["return"]["members"] == [55.0, 55.0]  # 1 + 2 + ... + 10
    loop.close()


def test_members_that_play_fewer_episodes_play_the_first_of_them() -> None:
    loop = loop_of(7, members=3)
    whole = play(loop, loop.task, 15, side_by_side=5)
    some = play(loop, loop.task, [5, 15, 10], side_by_side=5)
    assert np.isnan(some).sum(1).tolist() == [10, 0, 5]
    assert all(np.array_equal(a[:n], b[:n]) for a, b, n in zip(some, whole, (5, 15, 10)))
    loop.close()


def test_an_environment_that_never_ends_is_cut_where_it_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(playing, "SHORTEST", 30)
    loop = loop_of(10**9, members=1)
    loop.step()
    with caplog.at_level(logging.WARNING):
        measured = control.evaluation(loop, loop.task, Options(steps=1_000, quiet=True), "after")
    assert measured.scores["test"]["return"]["members"] == [465.0]  # 1 + 2 + ... + 30
    assert "5 episodes had not ended after 30 steps and were cut there" in caplog.text
    loop.close()


@pytest.mark.slow
def test_evaluate_cuts_what_never_ends_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(control, "LATEST", 40)
    run = etude.train(
        "ppo", TOYS, set={"task.arguments.length": 10**9, "experience.steps": 16}, steps=128, seeds=1, evaluate=0,
        out=tmp_path / "x", quiet=True,
    )  # fmt: skip
    with caplog.at_level(logging.WARNING):
        found = etude.evaluate(run.folder, episodes=3)
    assert found["test"]["return"].value == 820.0  # 1 + 2 + ... + 40
    assert "3 episodes had not ended after 40 steps and were cut there" in caplog.text


@pytest.mark.slow
def test_a_run_says_that_it_plays_fewer_and_how_to_have_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    etude.train("ppo", "cartpole", steps=512, seeds=1, out=tmp_path / "x")
    said = capsys.readouterr().err
    assert "Playing 5 episodes of each member before training, about a tenth of its steps" in said
    assert "(--evaluate 20 plays the usual 20)" in said


def test_how_far_an_evaluation_is_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PLAIN_EVERY", 0.0)
    loop, shown = loop_of(3, members=2), io.StringIO()
    with Counter("episodes", 10, stream=shown) as counter:
        play(loop, loop.task, 5, progress=counter.add)
    assert shown.getvalue().splitlines()[-1] == "10 of 10 episodes"
    silent = io.StringIO()
    with Counter("episodes", 10, quiet=True, stream=silent) as counter:
        counter.add(3)
    assert silent.getvalue() == ""
    loop.close()
