"""API-world: every call by hand, tests of the final state, what is done besides, the order of arguments."""

from __future__ import annotations

from typing import Any

import pytest

from etude.core.episodes import Problem, Segment
from etude.core.errors import ConfigError
from etude.core.streams import Stream
from etude.policies.agent_words import CALLS
from etude.tasks.agents.api_world import KINDS, APIWorld, api_world

APPS = {
    "notes": {"1": ["anna", "7"], "3": ["ben", "4"]}, "contacts": {"anna": "2", "ben": "6"}, "balance": 10,
    "paid": [], "asked": [],
}  # fmt: skip
INFO = {
    "kind": "pay and erase", "apps": APPS, "wanted": [["pay", "6", "4"], ["erase", "3"]],
    "orders": {"pay": ["amount", "account"], "ask": ["account", "amount"]},
}  # fmt: skip
PROBLEM = Problem("1", " pay note 3 and erase\n", info=INFO)
RIGHT = ["read 3", "find ben", "doc pay", "pay 4 6", "erase 3", "done"]


def play(texts: list[str], task: APIWorld = api_world) -> list[Any]:
    game = task.environment()
    game.reset(PROBLEM, 0)
    return [game.step(Segment("assistant", text)) for text in texts]


def test_a_game_by_hand() -> None:
    found = play(RIGHT)
    assert [r.segments[0].text for r in found] == [
        " ben 4\n", " ben 6\n", " pay amount account\n", " ok\n", " ok\n", " over\n",
    ]  # fmt: skip
    assert [r.reward for r in found] == [0, 0, 0, 0, 0, 1] and found[-1].terminated and found[-1].info["tests"] == 1


def test_every_call() -> None:
    said = {
        "list": "1 3", "read 1": "anna 7", "write 5 hugo 9": "ok", "read 5": "hugo 9", "erase 5": "ok",
        "read 5 ": "error", "people": "anna ben", "find anna": "anna 2", "save emma 4": "ok", "find emma": "emma 4",
        "forget emma": "ok", "find emma ": "error", "balance": "1 0", "ask 2 9": "ok", "doc ask": "ask account amount",
        "doc read": "read number", "doc list": "list", "doc done": "error", "pay 9": "error", "pay 11 1": "error",
        "pay ben 4": "error", "write 5 nobody 9": "error", "erase 9": "error", "forget hugo": "error", "": "error",
    }  # fmt: skip
    found = play(list(said), APIWorld(max_turns=99))
    assert [r.segments[0].text.strip() for r in found] == list(said.values())
    assert found[-1].info["failed"] == list(said.values()).count("error")
    assert {text.split()[0] for text in said if text} >= {*CALLS}


@pytest.mark.parametrize(
    ("texts", "share"),
    [
        (RIGHT, 1.0),
        (["pay 6 4", "erase 3", "done"], 3 / 5),  # 6 to account 4: not paid, and a wallet that should not be
        (["pay 4 6", "done"], 3 / 5),  # not erased: not done, and notes that should be other
        (["pay 4 6", "pay 4 6", "erase 3", "done"], 4 / 5),  # twice
        (["pay 4 6", "erase 3", "erase 1", "done"], 4 / 5),
        (["pay 4 6", "erase 3", "forget anna", "done"], 4 / 5),
        (["pay 4 6", "erase 3", "ask 2 9", "done"], 4 / 5),
        (["done"], 1 / 5),  # nothing done: contacts are as they should be
    ],
)
def test_the_final_state_is_tested(texts: list[str], share: float) -> None:
    last = play(texts)[-1]
    assert last.info["tests"] == pytest.approx(share) and last.reward == float(share == 1)
    assert play(texts, APIWorld(pays="tests"))[-1].reward == pytest.approx(share)


def test_what_is_undone_again_leaves_no_trace() -> None:
    assert play(["save hugo 1", "forget hugo", "write 8 ben 1", "erase 8", *RIGHT])[-1].reward == 1.0


def test_failed_calls_cost_down_to_nothing() -> None:
    task = APIWorld(pays="tests", penalty=0.25)
    assert play(["read 9", *RIGHT], task)[-1].reward == 0.75
    assert play(["read 9"] * 5 + ["done"], task)[-1].reward == 0.0


def test_nobody_pays_what_they_do_not_have() -> None:
    found = play(["pay 9 6", "pay 9 6", "balance"])
    assert [r.segments[0].text for r in found] == [" ok\n", " error\n", " 1\n"]


def test_a_game_that_is_not_ended_is_worth_nothing() -> None:
    found = play([*RIGHT[:-1], *["list"] * 5], APIWorld(pays="tests"))
    assert found[-1].truncated and not any(r.reward for r in found)


@pytest.mark.parametrize("kind", KINDS)
def test_scripts_of_every_task_pass_with_the_documentation(kind: str) -> None:
    task = APIWorld(kinds=(kind,))  # type: ignore[arg-type]
    for i in range(5):
        problem = task.problems("train")[i]
        script = task.script(problem, Stream(i))
        calls = [s.text for s in script if s.role == "assistant"]
        assert script[-1].reward == 1.0 and problem.level == f"calls{len(calls)}" and len(calls) <= 6
        assert (f" doc {kind.split()[0]}" in calls) == (kind.split()[0] in ("pay", "ask"))


@pytest.mark.slow
def test_the_order_cannot_be_guessed() -> None:
    """Whoever does not ask is right in half of the cases, but for accounts that equal amounts."""
    task = APIWorld(kinds=("pay person",), hasty=1.0)
    won = [task.script(task.problems("train")[i], Stream(i))[-1].reward for i in range(300)]
    assert 0.42 < sum(won) / 300 < 0.68


def test_what_cannot_be_played_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"APIWorld\.kinds must have at least one"):
        APIWorld(kinds=())
    with pytest.raises(ConfigError, match="at least 6"):
        APIWorld(max_turns=5)
