"""What holds for every game of one utterance per turn: divides, replay, branching, scripts, words."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from etude.core.episodes import Segment
from etude.core.errors import EnvironmentFault, UnknownNameError
from etude.core.registry import load_task
from etude.core.streams import Stream
from etude.policies.word_tokenizer import build_word_tokenizer
from etude.tasks.agents.games import Game, Posed, TurnTask

NAMES = ("milestones", "api-world", "text-maze", "menus", "wordle")


@pytest.fixture(params=NAMES)
def task(request: pytest.FixtureRequest) -> TurnTask:
    found = load_task(request.param)
    assert isinstance(found, TurnTask)
    return found


@cache
def tokenizer(family: str) -> Any:
    return build_word_tokenizer(family, 512)


def said(segments: list[Segment]) -> list[str]:
    return [s.text for s in segments if s.role == "assistant"]


def replay(game: Game, problem: Any, texts: list[str]) -> list[Any]:
    game.reset(problem, 0)
    return [game.step(Segment("assistant", text)) for text in texts]


def test_splits_share_nothing_and_are_the_same_every_time(task: TurnTask) -> None:
    train, test = ([task.problems(s)[i] for i in range(40)] for s in ("train", "test"))
    side = [{task.divided(Posed(str(p.prompt), p.answer, p.level, p.info)) for p in some} for some in (train, test)]
    assert not side[0] & side[1]
    assert task.problems("test")[7] == task.replace(slips=0.5).problems("test")[7] == test[7]
    assert task.replace(seed=1).problems("test")[7] != test[7]
    json.dumps([p.info for p in test])
    with pytest.raises(UnknownNameError, match=task.id):
        task.problems("dev")


def test_scripts_without_slips_win_and_worse_ones_win_less(task: TurnTask) -> None:
    def won(slips: float) -> int:
        pool, player = task.problems("train"), task.replace(slips=slips)
        return sum(player.script(pool[i], Stream(i))[-1].reward == 1.0 for i in range(15))

    assert won(0.0) == 15 and won(0.9) < 15
    assert task.script(task.problems("train")[0], Stream(3)) == task.script(task.problems("train")[0], Stream(3))


def test_a_game_can_be_gone_back_to_through_json(task: TurnTask) -> None:
    for i in range(3):
        problem = task.problems("train")[i]
        texts = said(task.replace(slips=0.6).script(problem, Stream(i)))
        game = task.environment()
        whole = replay(game, problem, texts)
        half = len(texts) // 2
        replay(game, problem, texts[:half])
        kept = json.loads(json.dumps(game.snapshot()))
        rest = [game.step(Segment("assistant", text)) for text in texts[half:]]
        other = task.environment()
        other.reset(task.problems("train")[i], 1)
        other.restore(kept)
        again = [other.step(Segment("assistant", text)) for text in texts[half:]]
        assert rest == again == whole[half:]


def test_games_end_at_their_limit_and_are_over_then(task: TurnTask) -> None:
    game, problem = task.environment(), task.problems("test")[0]
    steps = replay(game, problem, ["nonsense"] * task.max_turns)
    assert [s.truncated for s in steps] == [False] * (task.max_turns - 1) + [True]
    assert not any(s.terminated or s.reward for s in steps) and all(s.info["valid"] is False for s in steps)
    with pytest.raises(EnvironmentFault, match=f"game of {task.id} is over"):
        game.step(Segment("assistant", "more"))
    assert all(isinstance(tool["example"], str) for tool in game.tools())  # type: ignore[attr-defined]


@pytest.mark.slow
def test_every_word_is_a_token_and_turns_fit(task: TurnTask) -> None:
    words = tokenizer("games")
    if True:
        for i in range(6):
            problem = task.problems("train")[i]
            segments = task.replace(slips=0.5).script(problem, Stream(i))
            texts = [s.text for s in segments]
            tokens = words(texts)["input_ids"]
            assert all(words.unk_token_id not in t for t in tokens) and list(map(words.decode, tokens)) == texts
            assert [len(t) for t in words(said(segments))["input_ids"]] <= [task.max_tokens - 1] * len(texts)
            if task.id != "wordle":  # whose words are letters
                assert [len(t) for t in tokens] == [len(t.split()) + t.count("\n") for t in texts]
            assert sum(map(len, tokens)) + len(said(segments)) <= 300


def test_what_tools_give_as_an_example_is_understood(task: TurnTask) -> None:
    words = tokenizer("games")
    for tool in task.environment().tools():  # type: ignore[attr-defined]
        assert words.unk_token_id not in words.encode(tool["example"])
