"""Signals: two players take turns in one episode, each sees its own side, and they are paid differently."""

from __future__ import annotations

from typing import Any

import pytest

from etude.core.episodes import Problem, Segment, StopReason
from etude.core.errors import EnvironmentFault, UnknownNameError
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.core.task import StepResult
from etude.evaluation.language import evaluate_split
from etude.experience.groups import Groups
from etude.experience.rollout import fresh, rollout
from etude.experience.seats import Seats
from etude.tasks.agents.signals import Signals, Telling
from language_toys import Scripted, random_policy

PROBLEM = Problem("signals/1", "tell c:", "c")


def play(task: Any, say: Any, count: int = 1) -> list[Any]:
    """Games in which `say` makes the text of a turn of what its player has been shown."""
    from etude.policies.sampling import Completion

    policy = random_policy()

    def said(tokens: list[int]) -> Completion:
        text = policy.encode(say(policy.decode(tokens)))
        return Completion(text, [-1.0] * len(text), stop=StopReason.END_OF_TEXT)

    policy.converse = lambda: Scripted(said)  # type: ignore[assignment,return-value,method-assign]
    context = Context(task, policy, Stream(0), max_tokens=2)
    return rollout(fresh([PROBLEM] * count, 1, Stream(0)), context, Groups().sampling(context))


def test_each_player_has_an_episode_of_what_it_saw_and_was_paid() -> None:
    [sender] = play(Signals(cost=0.25), lambda shown: "xc" if shown.startswith("tell") else "c")
    [receiver] = sender.beside
    assert [e.player for e in (sender, receiver)] == ["sender", "receiver"]
    assert [s.text for s in sender.segments] == ["tell c:", "xc"]
    assert [s.text for s in receiver.segments] == ["hear x.:", "c"]
    assert (sender.reward, receiver.reward) == (0.5, 1.0)
    assert all(e.info["success"] and e.stop is StopReason.TERMINATED for e in (sender, receiver))
    assert sender.draw != receiver.draw and sender.seed == receiver.seed and sender.group == receiver.group


def test_in_several_rounds_they_take_turns() -> None:
    def say(shown: str) -> str:
        return ("x" if shown.startswith("tell") else "b") if shown.count("no") + shown.count("hear") < 2 else "c"

    [sender] = play(Signals(rounds=3, cost=0.1), say)
    [receiver] = sender.beside
    assert [s.text for s in sender.segments] == ["tell c:", "x", "\nno b\n", "x"]
    assert [s.text for s in receiver.segments] == ["hear x:", "b", "hear x:", "c"]
    assert sender.reward == pytest.approx(1 - 0.2) and receiver.reward == 1.0


def test_when_nobody_finds_it() -> None:
    [sender] = play(Signals(rounds=2, cost=0.1), lambda shown: "zz")
    assert sender.reward == pytest.approx(-0.4) and sender.beside[0].reward == 0.0
    assert sender.info["success"] is False


class Odd(Signals):
    def environment(self) -> Any:
        return OddTelling(self)


class OddTelling(Telling):
    answer: StepResult

    def step(self, segment: Segment) -> StepResult:
        return self.answer


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (StepResult([], player="judge"), "named the player 'judge', and the task's players are sender, receiver"),
        (StepResult([], pays={"receiver": float("nan")}), "paid 'receiver' nan; a reward must be a finite number"),
        (
            StepResult([], pays={"receiver": 1.0}),
            "'receiver' is paid 1 for problem 'signals/1' and has said nothing yet",
        ),
    ],
)
def test_what_an_environment_may_not_answer(answer: StepResult, sentence: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(OddTelling, "answer", answer, raising=False)
    with pytest.raises(EnvironmentFault, match=sentence):
        play(Odd(), lambda shown: "x")


def test_who_never_spoke_has_no_episode() -> None:
    task = Signals()
    policy = random_policy(context=8)  # the sender's prompt and its turn fill it
    context = Context(task, policy, Stream(0), max_tokens=2)
    [sender] = rollout(fresh([PROBLEM], 1, Stream(0)), context, Groups().sampling(context))
    assert sender.stop in (StopReason.TERMINATED, StopReason.CONTEXT_OVERFLOW, StopReason.MAX_TOKENS)
    assert all(e.action_count for e in sender.beside)


def test_seats_are_numbered_by_environment() -> None:
    context = Context(Signals(), random_policy(), Stream(0), max_tokens=2)
    how = Groups()
    seats = Seats(fresh([PROBLEM] * 2, 1, Stream(0)), context, how.view, how.sampling(context))
    assert [e.player for e in seats.episodes] == ["sender", "receiver"] * 2
    assert seats.now == [0, 2] and seats.named(1, "receiver") == 3 and seats.world(3) == 1
    assert seats.waiting([0, 3]) == [1, 2]


@pytest.mark.slow
def test_workers_pass_the_turn_on_too(monkeypatch: Any) -> None:
    here = play(Signals(rounds=2), lambda shown: "x")
    monkeypatch.setattr(Signals, "workers", 1)
    there = play(Signals(rounds=2), lambda shown: "x")
    assert [s.text for s in here[0].beside[0].segments] == [s.text for s in there[0].beside[0].segments]
    assert here[0].reward == there[0].reward


@pytest.mark.slow
def test_a_game_counts_once_in_an_evaluation() -> None:
    found = evaluate_split(random_policy(), Signals(), "test", problems=3, samples=2)
    assert found.correct.shape == (3, 2) and found.episodes[0][0].player == "sender"


def test_the_game_restores_and_ends() -> None:
    game = Signals().environment()
    game.reset(PROBLEM, 0)
    saved = game.snapshot()  # type: ignore[attr-defined]
    results = []
    for _ in range(2):
        game.restore(saved)  # type: ignore[attr-defined]
        results.append([game.step(Segment("assistant", t)) for t in ("x", "c")])
    assert results[0] == results[1]
    with pytest.raises(EnvironmentFault, match="is over"):
        game.step(Segment("assistant", "x"))
    with pytest.raises(UnknownNameError, match="split of signals"):
        Signals().problems("tset")
