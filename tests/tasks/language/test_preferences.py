"""The generated preference task: right against wrong, the problems those of compose."""

from __future__ import annotations

import re

import pytest

from etude.core.streams import Stream
from etude.tasks import resolve_task
from etude.tasks.language.compose import FUNCTIONS, compose
from etude.tasks.language.preferences import one_wrong_step, preferences


@pytest.mark.parametrize("split", preferences.splits())
def test_chosen_is_right_and_rejected_is_wrong(split: str) -> None:
    for i in range(100):
        problem = preferences.problems(split)[i]
        assert preferences.score(problem, problem.info["chosen"]) == 1.0
        assert preferences.score(problem, problem.info["rejected"]) == 0.0
        twin = compose.problems(split)[i]
        assert (problem.prompt, problem.answer) == (twin.prompt, twin.answer)


def test_every_written_step_is_done_correctly_and_one_is_wrongly_chosen() -> None:
    missing = 0
    for i in range(200):
        problem = preferences.problems("train")[i]
        text, names = problem.info["input"], []
        for name, result in re.findall(r"(f\d):(\w+)", problem.info["rejected"]):
            text = FUNCTIONS[name](text)
            names.append(name)
            assert text == result
        right = list(problem.info["functions"])
        missing += len(names) == 1
        differ = sum(a != b for a, b in zip(names, right)) if len(names) == 2 else 1
        assert differ == 1
        assert len(names) == 2 or names[0] in right
    assert 60 < missing < 140  # half of the slips leave a step out


@pytest.mark.parametrize("text", ["aaa", "fff", "abc"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_there_is_always_a_wrong_answer(name: str, text: str) -> None:
    wrong = one_wrong_step([name], text, Stream(0).numpy)
    assert wrong.rpartition(":")[2] not in ("", FUNCTIONS[name](text))


def test_found_by_name_and_the_same_every_time() -> None:
    assert resolve_task("preferences") == preferences
    assert preferences.problems("train")[5] == preferences.problems("train")[5]
    assert preferences.problems("train")[5].id == "preferences/train/5"
