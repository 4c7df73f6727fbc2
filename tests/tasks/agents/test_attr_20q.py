"""Attr-20Q: the oracle's answers by hand, the game's end, branching, the divide, the scripted player."""

from __future__ import annotations

from statistics import fmean

import pytest

from etude.core.episodes import Episode, Problem, Segment
from etude.core.errors import ConfigError, EnvironmentFault, UnknownNameError
from etude.core.streams import Stream
from etude.core.task import StepResult
from etude.tasks.agents.attr_20q import Attr20Q, Oracle, attr_20q, scripted_episode


def game(task: Attr20Q = attr_20q, secret: str = "K") -> Oracle:
    oracle = Oracle(task)
    oracle.reset(Problem("1", "who? \n", secret), 0)
    return oracle


def say(oracle: Oracle, text: str) -> StepResult:
    return oracle.step(Segment("assistant", text))


def test_the_table_has_distinct_rows_and_depends_on_the_seed() -> None:
    table = attr_20q.table
    assert len(table) == len(set(table.values())) == 32
    assert all(len(bits) == 8 and set(bits) <= set("01") for bits in table.values())
    assert table == Attr20Q().table != Attr20Q(seed=1).table
    assert sorted(Attr20Q(objects=4, attributes=2).table.values()) == ["00", "01", "10", "11"]


def test_every_question_is_answered_from_the_table() -> None:
    for secret, bits in attr_20q.table.items():
        oracle = game(secret=secret)
        for k, bit in enumerate(bits):
            for value in "01":
                assert oracle.reply(f"ask {'abcdefgh'[k]}{value}") == ("yes" if value == bit else "no")
        for name in attr_20q.table:
            assert oracle.reply(f"say {name}") == ("yes" if name == secret else "no")


@pytest.mark.parametrize(
    "said", ["", "ask", "ask b2", "ask i1", "ask b1 c1", "say", "say z", "say 3", "ASK b1", "say KK"]
)
def test_anything_else_is_invalid_and_costs_a_turn(said: str) -> None:
    result = say(game(), said)
    assert [s.text for s in result.segments] == ["invalid\n"]
    assert (result.reward, result.terminated, result.truncated) == (-0.1, False, False)
    assert result.info == {"success": False, "valid": False}


def test_a_whole_game() -> None:
    oracle = game()
    first, second, third = say(oracle, "ask b1"), say(oracle, "say A"), say(oracle, " say K\n")
    assert first.reward == second.reward == -0.1
    assert second.segments[0].text == "no\n" and second.segments[0].role == "user"
    assert (third.reward, third.terminated, third.truncated) == (0.0, True, False)
    assert third.info == {"success": True, "valid": True}
    with pytest.raises(EnvironmentFault, match="reset"):
        say(oracle, "say K")


def test_the_last_turn_truncates_unless_it_is_right() -> None:
    task = Attr20Q(max_turns=2, cost=1.0)
    late, right = game(task), game(task)
    say(late, "say A"), say(right, "say A")
    result = say(late, "say B")
    assert (result.reward, result.terminated, result.truncated) == (-1.0, False, True)
    result = say(right, "say K")
    assert (result.reward, result.terminated, result.truncated) == (0.0, True, False)


def test_a_snapshot_brings_a_game_back() -> None:
    oracle, other = game(), game(secret="A")
    say(oracle, "ask b1")
    state = oracle.snapshot()
    assert say(oracle, "say K").terminated
    for copy in (oracle, other):
        copy.restore(state)
        assert copy.turn == 1 and say(copy, "say A").reward == -0.1
        assert say(copy, "say K").terminated


def test_success_is_finding_the_object() -> None:
    found = Episode(attr_20q.problems("train")[0], info={"success": True})
    assert attr_20q.success(found)
    found.info["success"] = False
    assert not attr_20q.success(found)
    assert attr_20q.answer("ask b1say Ksay Q") == "Q"
    assert attr_20q.answer("ask b1") == ""


def test_openings_tell_the_truth_and_are_divided() -> None:
    train, test = attr_20q.problems("train"), attr_20q.problems("test")
    assert len(train) + len(test) == 32 * 28
    assert not {p.prompt for p in train} & {p.prompt for p in test}
    assert {p.answer for p in train} == {p.answer for p in test} == set(attr_20q.table)
    for problem in (*train, *test):
        bits = attr_20q.table[problem.answer]
        assert all(bits["abcdefgh".index(a)] == v for a, v in problem.prompt.removeprefix("who? ").split())
    assert train[5].id == "attr-20q/train/5" and train[5] == Attr20Q().problems("train")[5]


def test_too_few_openings_to_divide_are_refused() -> None:
    task = Attr20Q(objects=2, attributes=1, hints=1)  # a0 and a1 both fall on the train side
    assert len(task.problems("train")) == 2
    with pytest.raises(ConfigError, match="no opening for 'test'"):
        task.problems("test")


@pytest.mark.slow
def test_the_scripted_player_obeys_the_rules() -> None:
    problems = attr_20q.problems("train")
    episodes = [scripted_episode(attr_20q, problems[i], Stream(0).split(i)) for i in range(300)]
    for problem, segments in zip(problems, episodes):
        assert segments[0].text == problem.prompt
        assert [s.role for s in segments] == ["user"] + ["assistant", "user"] * (len(segments) // 2)
        replies = {(a.text, b.text) for a, b in zip(segments[1::2], segments[2::2])}
        oracle = game(secret=problem.answer)
        assert all(f"{oracle.reply(said)}\n" == answer != "invalid\n" for said, answer in replies)
        assert len(segments) <= 1 + 2 * attr_20q.max_turns
    assert 5 < fmean(len(segments) // 2 for segments in episodes) < 8  # mediocre: three questions and a guess would do
    assert episodes[7] == scripted_episode(attr_20q, problems[7], Stream(0).split(7))


def test_an_attentive_player_never_guesses_against_what_it_knows() -> None:
    """Guessing only, always attentive: no guess twice, and each fits the opening; eight objects take eight turns."""
    for i, problem in enumerate(attr_20q.problems("train")[:100]):
        segments = scripted_episode(attr_20q, problem, Stream(0).split(i), guessing=1.0, attention=1.0)
        guesses = [s.text.removeprefix("say ") for s in segments if s.role == "assistant"]
        told = problem.prompt.removeprefix("who? ").split()
        assert len(set(guesses)) == len(guesses)
        assert all(attr_20q.table[g]["abcdefgh".index(a)] == v for g in guesses for a, v in told)


def test_tools_describe_what_can_be_said() -> None:
    ask, guess = game().tools()
    assert ask["arguments"] == {"attribute": list("abcdefgh"), "value": ["0", "1"]}
    assert guess["arguments"]["object"] == list(attr_20q.table)
    assert all(game().reply(tool["example"]) != "invalid" for tool in (ask, guess))


def test_what_is_refused() -> None:
    with pytest.raises(UnknownNameError):
        attr_20q.problems("heldout")
    with pytest.raises(ConfigError, match="tell 32 objects apart: at least 5, got 4"):
        Attr20Q(attributes=4)
    with pytest.raises(ConfigError, match="at most the 8 attributes"):
        Attr20Q(hints=9)
    with pytest.raises(ConfigError):
        Attr20Q(objects=53)
