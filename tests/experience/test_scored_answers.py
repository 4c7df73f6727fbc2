"""Answers with scores: what becomes a row, what is drawn, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from etude.core.edit import set_values
from etude.core.episodes import Episode, Problem
from etude.core.errors import ConfigError, DataError
from etude.core.fit import check
from etude.core.registry import get_method
from etude.core.rows import to_batch
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.experience.groups import Groups
from etude.experience.mixed import GroupsAndScoredAnswers
from etude.experience.scored import ScoredAnswers
from etude.loops.language import LanguageLoop
from etude.rewards.preferences import AgainstOneOther
from etude.tasks import resolve_task
from language_toys import Toy, random_policy

pytestmark = pytest.mark.usefixtures("one_thread")
GIVEN: dict[str, Any] = {"responses": ["ab", "c", "abc"], "scores": [0.5, -1, 2.0]}


class Scored(Toy):
    """A toy task whose problems have scored answers."""

    def problems(self, split: str) -> list[Problem]:
        said = {**GIVEN, "behaviour_logps": [[-1.5] * (len(answer) + 1) for answer in GIVEN["responses"]]}
        return [Problem(f"{split}-{i}", prompt, info=said) for i, prompt in enumerate(self.prompts)]


def collected(part: ScoredAnswers, given: Mapping[str, Any] = GIVEN, count: int = 2, seed: int = 0) -> list[Episode]:
    task, policy = Toy(), random_policy()
    problems = [Problem(f"p{i}", "ab", info=dict(given)) for i in range(count)]
    return part.collect(problems, Context(task, policy, Stream(seed)))


def test_a_row_for_each_answer_paid_its_score() -> None:
    episodes = collected(ScoredAnswers())
    assert [e.group for e in episodes] == [0, 0, 0, 1, 1, 1]
    assert [e.reward for e in episodes] == [0.5, -1.0, 2.0] * 2
    assert [e.completion for e in episodes[:3]] == GIVEN["responses"]
    assert all(e.written for e in episodes)
    assert [e.action_count for e in episodes[:3]] == [3, 2, 4]  # with the token that ends them
    batch = to_batch(episodes, 0, 1.0, torch.device("cpu"))
    assert not bool(batch.sampled.any()) and float(batch.behaviour_logp.abs().max()) == 0


def test_ranks_in_place_of_scores() -> None:
    episodes = collected(ScoredAnswers(), {"responses": GIVEN["responses"], "ranks": [2, 3, 1]}, count=1)
    assert [e.reward for e in episodes] == [-2.0, -3.0, -1.0]


@pytest.mark.slow
def test_of_many_answers_some_are_drawn_anew_each_time() -> None:
    many = {"responses": list("abcdefgh"), "scores": list(range(8))}
    found = [tuple(e.completion for e in collected(ScoredAnswers(most=3), many, 1, seed)) for seed in range(12)]
    assert all(len(said) == 3 and sorted(said) == list(said) for said in found)
    assert len(set(found)) > 4
    assert found[0] == tuple(e.completion for e in collected(ScoredAnswers(most=3), many, 1, 0))
    task, policy = Toy(), random_policy()
    twice = [Problem("p", "ab", info=dict(many))] * 8
    episodes = ScoredAnswers(most=3).collect(twice, Context(task, policy, Stream(0)))
    assert len({tuple(e.completion for e in episodes[k : k + 3]) for k in range(0, 24, 3)}) > 2


def test_what_the_policy_that_wrote_them_said() -> None:
    said = [[-0.5, -1.0, -0.25], [-2.0, -0.125], [-0.5, -0.5, -1.0, -3.0]]
    episodes = collected(ScoredAnswers(behaviour=True), {**GIVEN, "behaviour_logps": said}, count=1)
    batch = to_batch(episodes, 0, 1.0, torch.device("cpu"))
    for row, expected in enumerate(said):
        assert batch.behaviour_logp[row][batch.action_mask[row]].tolist() == expected


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "has no two answers with scores"),
        ({"responses": "ab", "scores": [1.0, 2.0]}, "has no two answers with scores"),
        ({"responses": ["a"], "scores": [1.0]}, "has no two answers with scores"),
        ({"responses": ["a", "b"]}, "has 2 answers and no 'scores' or 'ranks'"),
        ({"responses": ["a", "b"], "scores": [1.0]}, "has 2 answers and 1 'scores' or 'ranks'"),
        ({"responses": ["a", "b"], "scores": [1.0, math.nan]}, "a score that is no finite number"),
        ({"responses": ["a", "b"], "scores": [1.0, None]}, "a score that is no finite number"),
    ],
)
def test_data_that_are_no_scored_answers(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        collected(ScoredAnswers(), given, count=1)


def test_log_probabilities_that_are_not_those_of_the_tokens() -> None:
    with pytest.raises(DataError, match="does not say how likely its answers were"):
        collected(ScoredAnswers(behaviour=True), count=1)
    short = {**GIVEN, "behaviour_logps": [[-1.0] * 2] * 3}
    with pytest.raises(DataError, match=r"Answer 0 to problem 'p0' has 3 tokens to learn.*and 2 'behaviour_logps'"):
        collected(ScoredAnswers(behaviour=True), short, count=1)


def test_who_asks_for_the_behaviour_policy_is_refused_data_without_it() -> None:
    rebel = set_values(get_method("rebel"), {"experience": "scored-answers", "rewards": ("task-reward",)})
    with pytest.raises(ConfigError, match=r"BehaviourPolicy needs the log-probabilities.*scored-answers, behaviour"):
        check(rebel)
    check(set_values(rebel, {"experience.behaviour": True}))
    with pytest.raises(ConfigError, match="has no two answers with scores"):
        check(get_method("copg"), resolve_task("compose"))
    check(get_method("copg"), resolve_task("preferences"))


@pytest.mark.slow
@pytest.mark.parametrize("behaviour", [False, True])
def test_offline_data_are_learned_from(behaviour: bool) -> None:
    """CoPG from scores, and REBEL from scores with log-probabilities: the better answer gains on the worse ones."""
    task, method = Scored(), get_method("copg")
    if behaviour:
        changes = {"experience": "scored-answers", "experience.behaviour": True, "rewards": ("task-reward",)}
        method = set_values(get_method("rebel"), changes)
    method = method.replace(problems=2, optimizer=method.optimizer.replace(lr=2e-2))
    loop = LanguageLoop(method, task, random_policy(), seed=0, steps=6)
    losses = [loop.step().metrics["loss"] for _ in range(6)]
    assert losses[-1] < 0.7 * losses[0]


# Beside the policy's own


def test_samples_and_answers_are_in_one_group_and_the_samples_those_of_groups() -> None:
    problems = Scored().problems("train")[:2]
    both, alone = (
        part.collect(problems, Context(Scored(), random_policy(), Stream(0)))
        for part in (GroupsAndScoredAnswers(size=2, most=4, max_tokens=3), Groups(size=2, max_tokens=3))
    )
    assert [e.group for e in both] == [0, 0, 1, 1, 0, 0, 0, 1, 1, 1]
    assert [e.tokens for e in both[:4]] == [e.tokens for e in alone]
    assert [e.reward for e in both[4:]] == [0.5, -1.0, 2.0] * 2
    batch = to_batch(both, 0, 1.0, torch.device("cpu"))
    assert batch.sampled.tolist() == [True] * 4 + [False] * 6
    assert len(batch.draw.unique()) == 10
    drawn = AgainstOneOther().drawn(batch)
    assert [int(drawn[batch.group == g].sum()) for g in (0, 1)] == [1, 1]


def test_who_asks_for_the_behaviour_policy_of_all_rows_is_refused_data_without_it() -> None:
    mixed = {"experience": "groups-and-scored-answers", "rewards": ("task-reward",)}
    with pytest.raises(ConfigError, match="BehaviourPolicy needs the log-probabilities"):
        check(set_values(get_method("rebel"), mixed))
    check(set_values(get_method("rebel"), {**mixed, "experience.behaviour": True}))
    with pytest.raises(ConfigError, match="has no two answers with scores"):
        check(set_values(get_method("copg"), {"experience": "groups-and-scored-answers"}), resolve_task("compose"))


@pytest.mark.slow
def test_own_samples_and_data_are_learned_from_together() -> None:
    """The better of the data gain on the worse ones, and samples are compared with them: all pairs of six rows."""
    method: Any = set_values(get_method("copg"), {"experience": "groups-and-scored-answers", "experience.size": 3})
    method = method.replace(problems=2, optimizer=method.optimizer.replace(lr=2e-2))
    loop = LanguageLoop(method, Scored(), random_policy(), seed=0, steps=6)
    found = [loop.step().metrics for _ in range(6)]
    assert found[-1]["loss"] < 0.7 * found[0]["loss"] and found[0]["written"] == 0.5 and found[0]["rows"] == 12
