"""Reward functions of one completion, and async ones."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from etude.core.episodes import Episode
from etude.core.errors import ConfigError, RewardError
from etude.rewards.function import CallableReward
from reward_toys import CONTEXT, episodes

SOURCE = """
import asyncio, time

def one(completion, prompt, answer, level, id, topic, messages, episode):
    assert (prompt, answer, level, topic) == (f"p{id}", "a", "easy", "sums")
    assert messages[-1]["content"] == completion == episode["completion"]
    return {"right": completion == answer, "length": len(completion) / 4}

def rest(completion, **data):
    assert sorted(data) == ["answer", "id", "level", "prompt", "topic"], sorted(data)
    return None if completion == "" else 0.5

def faulty(completion):
    if completion == "hang":
        try:
            time.sleep(60)
        except Exception:
            return 1.0
    if completion == "late":
        raise TimeoutError("the judge is busy")
    return 1.0

def text(completion):
    return "0.5"

running = most = 0

async def judged(completion):
    global running, most
    running += 1
    most = max(most, running)
    try:
        await asyncio.sleep(60 if completion == "hang" else 0.05)
        if completion == "raise":
            raise ValueError("no verdict")
        return float(most)
    finally:
        running -= 1

async def batch(completions, answers):
    if "hang" in completions:
        await asyncio.sleep(60)
    await asyncio.sleep(0)
    return [float(c == a) for c, a in zip(completions, answers)]

client = None

async def kept(completion):
    global client
    client = client or asyncio.get_running_loop().create_future()
    assert client.get_loop() is asyncio.get_running_loop()
    return 1.0

class Judge:
    async def __call__(self, completion):
        return 2.0

judge = Judge()
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("user") / "item_rewards.py"
    path.write_text(SOURCE)
    return path


@pytest.mark.slow
def test_a_function_of_one_completion_gets_its_own_columns(make: Any) -> None:
    part, batch = make("one"), episodes("a", "bc")
    assert part.score(batch, CONTEXT) == [1.25, 0.5]
    assert [e.scores for e in batch] == [
        {"one/right": 1.0, "one/length": 0.25},
        {"one/right": 0.0, "one/length": 0.5},
    ]


@pytest.mark.slow
def test_the_rest_of_the_columns_are_singular_too(make: Any) -> None:
    assert make("rest").score(episodes("x", "", "y"), CONTEXT) == [0.5, None, 0.5]


@pytest.mark.slow
def test_a_column_named_completion_is_not_what_the_policy_said(make: Any) -> None:
    batch = episodes("x")
    batch[0].problem.info["completion"] = ""  # a worked answer of the data
    assert make("rest").score(batch, CONTEXT) == [0.5]


@pytest.mark.slow
def test_one_number_each_is_asked_for(make: Any) -> None:
    with pytest.raises(RewardError, match=r"text takes one completion and must return one float, got str '0.5'"):
        make("text").score(episodes("x"), CONTEXT)


@pytest.mark.slow
def test_only_the_guilty_are_late(make: Any) -> None:
    """The deadline of one completion ends it alone: no call is repeated, and no process replaced."""
    part, batch = make("faulty", item_timeout=0.2, timeout=30.0, on_bad_reward="drop"), episodes("x", "hang", "late")
    assert [r == 1.0 for r in part.score(batch, CONTEXT)] == [True, False, False]
    assert [e.info.get("dropped") for e in batch] == [None, "reward timed out", "reward raised"]
    assert part._caller.worker.starts == 1


@pytest.mark.slow
def test_a_late_completion_stops_the_run_by_name(make: Any) -> None:
    with pytest.raises(RewardError, match=r"faulty, on problem '1' of task 'sums', did not return within 0.2 s"):
        make("faulty", item_timeout=0.2).score(episodes("x", "hang"), CONTEXT)


@pytest.mark.slow
def test_async_calls_are_awaited_together(make: Any) -> None:
    """Forty of 0.05 s each: two seconds one after another."""
    part = make("judged")
    start = time.monotonic()
    assert max(part.score(episodes(*["x"] * 40), CONTEXT)) == 40.0
    assert time.monotonic() - start < 1.5


@pytest.mark.slow
def test_an_async_call_that_raises_or_hangs_is_found_without_repeating_others(make: Any) -> None:
    part, batch = make("judged", timeout=0.5, on_bad_reward="zero"), episodes("x", "hang", "raise", "x")
    assert part.score(batch, CONTEXT) == [4.0, 0.0, 0.0, 4.0]
    assert [e.info.get("zeroed") for e in batch] == [None, "reward timed out", "reward raised", None]
    assert (part._caller.worker.starts, part.state["zeroed"], part.state["zeros"]) == (1, 2, 0)


@pytest.mark.slow
def test_an_async_function_of_a_batch(make: Any) -> None:
    assert make("batch").score(episodes("a", "b"), CONTEXT) == [1.0, 0.0]
    part = make("batch", timeout=0.3, on_bad_reward="zero")
    assert part.score(episodes("a", "hang"), CONTEXT) == [1.0, 0.0]


@pytest.mark.slow
def test_a_client_may_be_kept_between_calls(make: Any) -> None:
    part = make("kept")
    assert [part.score(episodes("x"), CONTEXT) for _ in range(2)] == [[1.0], [1.0]]


@pytest.mark.slow
def test_an_object_that_is_awaited(make: Any) -> None:
    assert make("judge").score(episodes("x"), CONTEXT) == [2.0]


def test_async_in_this_process() -> None:
    async def score(completion: str) -> float:
        await asyncio.sleep(60 if completion == "hang" else 0)
        return 3.0

    part = CallableReward(score, item_timeout=0.2, on_bad_reward="zero", rescore_every=0).bind()
    assert part.score(episodes("x", "hang"), CONTEXT) == [3.0, 0.0]


def test_async_where_a_loop_runs_already() -> None:
    """As in a notebook."""

    async def score(completions: list[str]) -> list[float]:
        return [1.0 for _ in completions]

    async def cell() -> list[float | None]:
        return CallableReward(score, rescore_every=0).bind().score(episodes("x"), CONTEXT)

    assert asyncio.run(cell()) == [1.0]


@pytest.mark.slow
def test_a_deadline_that_nothing_could_keep_is_refused(make: Any) -> None:
    with pytest.raises(ConfigError, match=r"batch takes a whole batch, so item_timeout=1 means nothing for it"):
        make("batch", item_timeout=1.0)
    with pytest.raises(ConfigError, match=r"runs in this process, which cannot interrupt it, so item_timeout"):
        CallableReward(lambda completion: 1.0, item_timeout=1.0).bind()


@pytest.mark.slow
@pytest.mark.parametrize("what", ["drop", "zero"])
def test_the_share_of_bad_rewards_can_be_set(make: Any, what: str) -> None:
    def many() -> list[Episode]:
        return episodes(*["x"] * 95, *["late"] * 5)

    assert len(make("faulty", on_bad_reward=what, bad_share=0.05).score(many(), CONTEXT)) == 100
    with pytest.raises(RewardError, match=r"had no reward for 5 of 100 episodes so far \(5 failed.*more than 0.04 of"):
        make("faulty", on_bad_reward=what, bad_share=0.04).score(many(), CONTEXT)
