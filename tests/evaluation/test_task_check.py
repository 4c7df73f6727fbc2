"""`check_task`: each planted fault is found, in a sentence; built-in tasks have none."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

import etude
from etude.core.episodes import Episode, Problem, Segment
from etude.core.errors import UnknownNameError
from etude.core.task import LanguageTask, StepResult
from etude.core.worlds import World
from etude.evaluation.task_check import check_task
from etude.tasks import resolve_task

COUNTER = itertools.count()


class Sound(LanguageTask):
    """Say yes."""

    id: ClassVar[str] = "sound"

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in self.splits():
            raise UnknownNameError("split", split, self.splits())
        return [Problem(f"{split}/{i}", f"say yes {split} {i}", info={"demonstration": "yes"}) for i in range(3)]

    def score(self, problem: Problem, completion: str) -> float:
        return float(completion == "yes")


class SameIds(Sound):
    def problems(self, split: str) -> Sequence[Problem]:
        return [Problem("one", "?")] * 2 if split in self.splits() else super().problems(split)


class Changing(Sound):
    """Asked for again, a problem is another one."""

    def problems(self, split: str) -> Any:
        class Pool(list[Problem]):
            def __getitem__(self, i: Any) -> Any:
                return Problem(f"{split}/{i}", f"{next(COUNTER)}")

        return Pool(super().problems(split))


class NoTrain(Sound):
    def splits(self) -> tuple[str, ...]:
        return ("test",)


class AnySplit(Sound):
    def problems(self, split: str) -> Sequence[Problem]:
        return [Problem(f"{split}/0", "?")]


class Endless(Sound):
    def problems(self, split: str) -> Any:
        return iter(super().problems(split))


class Infinite(Sound):
    def score(self, problem: Problem, completion: str) -> float:
        return float("nan")


class Chancy(Sound):
    def score(self, problem: Problem, completion: str) -> float:
        return float(next(COUNTER))


class Raises(Sound):
    def score(self, problem: Problem, completion: str) -> float:
        return float(completion)


class WrongDemonstration(Sound):
    def demonstration(self, problem: Problem) -> str | None:
        return "no"


class NoDemonstration(Sound):
    def demonstration(self, problem: Problem) -> str | None:
        return str(problem.info["worked"])


class OneSplit(Sound):
    def splits(self) -> Any:
        return "train"


class NoSplits(Sound):
    def splits(self) -> tuple[str, ...]:
        return ("train", "test")[1 // 0 :]


class Prompts(Sound):
    prompt: ClassVar[Any] = "say yes"

    def problems(self, split: str) -> Sequence[Problem]:
        return [replace(p, prompt=self.prompt) for p in super().problems(split)[:1]]


class Leaks(Prompts):
    """The same prompt is trained on and tested."""


class NoPrompt(Prompts):
    prompt: ClassVar[Any] = None


class NoMessages(Prompts):
    prompt: ClassVar[Any] = []


class Graded(Sound):
    """Solved from 0.5 on, whatever the reward."""

    def score(self, problem: Problem, completion: str) -> float:
        return 0.5 * super().score(problem, completion)

    def success(self, episode: Episode) -> bool:
        return episode.reward >= 0.5


class Roomless(Sound):
    def environment(self) -> Any:
        return 1 // 0


class Mute(Sound):
    def environment(self) -> Any:
        class Room:
            def reset(self, problem: Problem, seed: int) -> list[Segment]:
                return []

        return Room()


class Room:
    """Counts steps; `restore` forgets to."""

    def reset(self, problem: Problem, seed: int) -> list[Segment]:
        self.count = 0
        return [Segment("user", "go")]

    def step(self, segment: Segment) -> Any:
        self.count += 1
        return StepResult([Segment("user", str(self.count))], reward=0.0)

    def snapshot(self) -> int:
        return self.count

    def restore(self, state: int) -> None:
        pass


class Tires(Sound):
    """Its second turn raises."""

    max_turns: ClassVar[int] = 3

    def environment(self) -> Any:
        class Tired(Room):
            def step(self, segment: Segment) -> Any:
                if self.count:
                    raise ValueError("too tired")
                return super().step(segment)

            def restore(self, state: int) -> None:
                self.count = state

        return Tired()


class Forgets(Sound):
    def environment(self) -> Any:
        return Room()


class Answers(Sound):
    def environment(self) -> Any:
        class Tuple(Room):
            def step(self, segment: Segment) -> Any:
                return [], 0.0, True

        return Tuple()


class Drifts(Sound):
    def environment(self) -> Any:
        class Clock(Room):
            def reset(self, problem: Problem, seed: int) -> list[Segment]:
                super().reset(problem, seed)
                return [Segment("user", str(next(COUNTER)))]

        return Clock()


@pytest.mark.parametrize(
    ("task", "sentence"),
    [
        (SameIds, "Problem 1 of 'train' has the id 'one' of problem 0 of 'train'"),
        (Changing, "Problem 0 of 'train' is another one when it is asked for again"),
        (NoTrain, "splits() must name 'train'"),
        (AnySplit, "An unknown split gives problems as if it were there"),
        (Endless, "The split 'train' must have a length and an index"),
        (Infinite, "score must return a finite number, got nan for '' of 'train/0'"),
        (Chancy, "it must not depend on chance"),
        (Raises, "score raised ValueError: could not convert string to float: '' for the completion '' of 'train/0'"),
        (WrongDemonstration, "The demonstration of 'train/0' scores 0.0, which is no success: 'no'"),
        (NoDemonstration, "The demonstration of 'train/0' raised KeyError: 'worked'"),
        (OneSplit, "splits() must return a tuple of names, got 'train'"),
        (NoSplits, "splits() raised ZeroDivisionError"),
        (NoPrompt, "The prompt of 'train/0' must be text, or messages with role and content; got None"),
        (NoMessages, "The prompt of 'train/0' must be text, or messages with role and content; got []"),
        (Leaks, "'test/0' of 'test' has the prompt of 'train/0' of 'train': what is measured there was learned"),
        (Roomless, "environment() raised ZeroDivisionError"),
        (Tires, "step raised ValueError: too tired in turn 2 of 'train/0'"),
        (Mute, "reset must return at least one segment"),
        (Forgets, "After restore(snapshot()) step gives"),
        (Answers, "step must return a StepResult, got tuple"),
        (Drifts, "reset shows something else for the same problem and seed"),
    ],
)
def test_what_is_wrong_is_said(task: type[LanguageTask], sentence: str) -> None:
    found = [f.sentence for f in etude.check_task(task()) if f.level != "fact"]
    assert any(sentence in s for s in found), found


def test_a_sound_task_has_only_facts() -> None:
    assert [f.sentence for f in check_task(Sound())] == [
        "train: 3 problems, the first 'train/0'.",
        "train: 3 problems were scored, of which 3 have a demonstration that solves them.",
        "test: 3 problems, the first 'test/0'.",
        "test: 3 problems were scored, of which 3 have a demonstration that solves them.",
    ]  # fmt: skip


def test_what_a_success_is_says_the_task() -> None:
    assert {f.level for f in check_task(Graded())} == {"fact"}


@pytest.mark.first
@pytest.mark.parametrize("name", [n for n in etude.tasks() if n != "reasoning-gym"])
def test_built_in_tasks_have_no_faults(name: str) -> None:
    if resolve_task(name).world is not World.CONTROL:  # which `check_environment` plays, in its own tests
        assert not [f for f in check_task(name) if f.level == "fault"]


@pytest.mark.slow
def test_the_shell_checks_tasks_and_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    from etude.cli.check import check

    (tmp_path / "mine_to_check.py").write_text(
        "from etude.core.slots import TokenAdvantages\n"
        "class Wrong(TokenAdvantages):\n    def __call__(self, batch):\n        return batch.scores\n"
        "class Right(TokenAdvantages):\n    def __call__(self, batch):\n        return batch.rewards\n"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        check("mine_to_check.py:Wrong")
    assert "must return [B, T]" in " ".join(capsys.readouterr().out.split())
    check("mine_to_check.py:Right", json=True)
    assert [f["level"] for f in json.loads(capsys.readouterr().out)] == ["fact"]
    check("compose")
    assert "No faults" in capsys.readouterr().out
