"""Collect: calls and answers by hand, the game's end, branching, the divide, the scripts."""

from __future__ import annotations

import pytest

from etude.core.episodes import Problem, Segment
from etude.core.errors import ConfigError, EnvironmentFault, UnknownNameError
from etude.core.streams import Stream
from etude.core.task import StepResult
from etude.experience.views import SummaryAt
from etude.tasks.agents.collect import REQUEST, CollectValues, Values, collect

PROBLEM = Problem("1", "keys c a f\n", "c0 a9 f4", info={"values": {"c": "0", "a": "9", "f": "4"}})


def game(task: CollectValues = collect) -> Values:
    world = Values(task)
    world.reset(PROBLEM, 0)
    return world


def say(world: Values, text: str) -> StepResult:
    return world.step(Segment("assistant", text))


@pytest.mark.parametrize(
    "said", ["", "get", "get b", "get ca", "say", "say x", "GET c", "say c 0", "say c0  a9", "say c10", "c0"]
)
def test_anything_else_is_invalid_and_costs_a_turn(said: str) -> None:
    world = game()
    result = say(world, said)
    assert [s.text for s in result.segments] == ["invalid\n"] and world.turn == 1
    assert (result.reward, result.terminated, result.truncated) == (0.0, False, False)
    assert result.info == {"success": False, "valid": False}


def test_a_whole_game() -> None:
    world = game()
    assert [say(world, f"get {k}").segments[0].text for k in "faca"] == ["f4\n", "a9\n", "c0\n", "a9\n"]
    result = say(world, " say f4 c0 a9\n")
    assert (result.reward, result.terminated, result.info) == (1.0, True, {"success": True, "valid": True})
    with pytest.raises(EnvironmentFault, match="reset"):
        say(world, "get c")


def test_one_answer_ends_the_game() -> None:
    for short in ("say c0 a9", "say c0 a9 f4 f4", "say c0 a9 f5", "say c0 c0 f4"):
        result = say(game(), short)
        assert (result.reward, result.terminated, result.segments[0].text) == (0.0, True, "wrong\n")


def test_the_last_turn_truncates_unless_it_answers() -> None:
    task = CollectValues(keys=3, max_turns=4)
    late, done = game(task), game(task)
    for world in (late, done):
        for _ in range(3):
            assert not say(world, "get a").truncated
    assert (say(late, "get c").truncated, say(done, "say a1").truncated) == (True, False)


def test_a_snapshot_brings_a_game_back() -> None:
    world, other = game(), Values(collect)
    say(world, "get c")
    other.restore(world.snapshot())
    assert other.turn == 1 and say(other, "say c0 a9 f4").reward == 1.0


def test_problems_are_divided_and_repeatable() -> None:
    train, test = collect.problems("train"), collect.problems("test")
    lists = [{p.prompt for p in (pool[i] for i in range(300))} for pool in (train, test)]
    assert not lists[0] & lists[1] and len(lists[0]) == 300
    assert train[7] == CollectValues().problems("train")[7] != CollectValues(seed=1).problems("train")[7]
    for problem in (train[3], test[4]):
        names = str(problem.prompt).split()[1:]
        assert problem.answer == " ".join(k + problem.info["values"][k] for k in names) and len(set(names)) == 6
    with pytest.raises(UnknownNameError):
        collect.problems("heldout")
    with pytest.raises(ConfigError, match="more than the 6 keys"):
        CollectValues(max_turns=6)


def test_scripts_win_or_show_a_game_between_summaries() -> None:
    wins = summaries = resumed = 0
    for i in range(200):
        problem = collect.problems("train")[i]
        segments = collect.script(problem, Stream(0).split(i))
        values, text = problem.info["values"], [s.text for s in segments]
        calls = [t for t in text if t.startswith("get")]
        begun = segments[1].text.split() if segments[1].role == "user" and text[1] != REQUEST else []
        known = begun + [k.split()[1] + values[k.split()[1]] for k in calls]
        if segments[-2].text == REQUEST:
            assert text[-1].split() == known
        else:
            assert text[-1] == f"say {problem.answer}" and len(known) == 6
            assert segments[-1].reward == 1.0
        wins, summaries, resumed = (
            wins + (text[-2] != REQUEST),
            summaries + (text[-2] == REQUEST),
            resumed + bool(begun),
        )
    assert wins > 100 and summaries > 40 and resumed > 40
    assert SummaryAt().request == REQUEST
    assert len(f"say {collect.problems('train')[0].answer}") < collect.max_tokens == 23
    plain = [CollectValues(summarised=0.0).script(collect.problems("train")[i], Stream(0).split(i)) for i in range(20)]
    assert all(len(s) == 1 + 2 * 6 + 1 for s in plain)


def test_the_answer_is_what_was_said_last() -> None:
    assert collect.answer("get asay a1say d3 a4") == "a4 d3" and collect.answer("get a") == ""
    assert [tool["name"] for tool in game().tools()] == ["get", "say"]


def test_games_may_differ_in_how_much_they_ask_for() -> None:
    task = CollectValues(keys=4, fewest=2)
    train, test = task.problems("train"), task.problems("test")
    levels = [str(train[i].level) for i in range(300)]
    assert {*levels} == {"keys2", "keys3", "keys4"} and min(map(levels.count, {*levels})) > 70
    for problem in (test[i] for i in range(20)):
        count = int(str(problem.level).removeprefix("keys"))
        assert len(str(problem.answer).split()) == len(problem.info["values"]) == count
    with pytest.raises(ConfigError, match="fewest must be at most its keys, 4, got 5"):
        CollectValues(keys=4, fewest=5)
