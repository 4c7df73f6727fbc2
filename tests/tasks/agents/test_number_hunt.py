"""Number hunt: what is answered and paid, how often it is false, and that a game can be gone back to."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from etude.core.episodes import Problem
from etude.core.errors import EnvironmentFault
from etude.core.streams import Stream
from etude.tasks.agents.number_hunt import NUMBERS, Hunt, NumberHunt, said


def game(hidden: str = "C", seed: int = 0, **fields: float) -> Hunt:
    found = NumberHunt(**fields).environment()  # type: ignore[arg-type]
    assert isinstance(found, Hunt)
    found.reset(Problem("p", "hunt>\n", hidden), seed)
    return found


def test_a_game_without_noise() -> None:
    hunt = game(noise=0.0)
    told = [hunt.step(said(text)) for text in ("A", "f", "C", "hello", "C")]
    assert [r.segments[0].text for r in told[:4]] == ["+\n", "-\n", "=\n", "?\n"]
    assert [r.reward for r in told] == [0, 0, 0, 0, 1.0] and told[-1].info == {"success": True, "valid": True}
    assert [r.terminated for r in told] == [False] * 4 + [True]
    with pytest.raises(EnvironmentFault, match=r"is over; call reset\(\)"):
        hunt.step(said("A"))


@pytest.mark.parametrize(("guess", "reward"), [("A", 1 - 2 / 31), ("f", 1 - 29 / 31), ("", 0.0), ("AC", 0.0)])
def test_the_last_guess_is_paid_for_how_near_it_is(guess: str, reward: float) -> None:
    assert game(max_turns=1).step(said(guess)).reward == pytest.approx(reward, abs=1e-15)


@pytest.mark.slow
def test_one_answer_in_ten_is_one_of_the_other_two() -> None:
    told = Counter(game(seed=seed).step(said("K")).segments[0].text[0] for seed in range(500))
    assert told["-"] == pytest.approx(450, abs=4 * 45**0.5)
    assert told["+"] == pytest.approx(25, abs=20) and told["="] == pytest.approx(25, abs=20)


def test_a_game_is_the_same_under_its_seed_and_from_a_snapshot() -> None:
    first = [r.segments for r in map(game(seed=5).step, map(said, "KDC"))]
    hunt = game(seed=5)
    assert hunt.step(said("K")).segments == first[0]
    state = json.loads(json.dumps(hunt.snapshot()))
    other = game("f", seed=9)
    other.restore(state)
    assert [r.segments for r in map(other.step, map(said, "DC"))] == first[1:]


def test_problems_hide_every_number_and_dialogues_are_whole() -> None:
    task = NumberHunt()
    assert {task.problems("train")[i].answer for i in range(400)} == set(NUMBERS)
    assert [task.problems("test")[i].answer for i in range(20)] != [task.problems("train")[i].answer for i in range(20)]
    script = task.script(task.problems("train")[0], Stream(1))
    assert [s.role for s in script] == ["user", "assistant"] * 5
    assert script == task.script(task.problems("train")[0], Stream(1))
