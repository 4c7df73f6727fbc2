"""RewardAnything: what a verdict is paid, names that are drawn anew, and a judge that learns to rank."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import pytest

from etude.core.edit import set_values
from etude.core.episodes import Episode, Problem, Segment
from etude.core.errors import ConfigError, DataError
from etude.core.fit import check
from etude.core.registry import get_method
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.loops.language import LanguageLoop
from etude.methods.preference.reward_anything import ListwiseReward, renamed
from etude.rewards.verdicts import candidates_of, listed
from etude.tasks.language.principles import principles
from language_toys import Toy, random_policy

LISTED = Problem("p/1", "?\nA:x\nB:y\nC:z\n", info={"asked": "?", "candidates": ["x", "y", "z"], "targets": [1, 2, 4]})


def paid(text: str, **fields: float) -> float:
    part = ListwiseReward(**fields)
    return part.score([Episode(LISTED, [Segment("assistant", text)])], None)[0]  # type: ignore[arg-type]


def context(step: int = 0, seed: int = 0) -> Any:
    return Context(None, None, Stream(seed).split("train", step))


def test_form_and_accuracy_are_weighed() -> None:
    text = '{"scores":{"A":2,"B":1,"C":3},"best-to-worst":["C","A","B"]}'
    assert paid(text) == pytest.approx(0.1 * 0.8 + 0.9 * 7 / 9, abs=1e-12)
    assert paid(text, format=0.0, accuracy=1.0) == pytest.approx(7 / 9, abs=1e-12)
    assert paid(text, format=1.0, accuracy=0.0) == pytest.approx(0.8, abs=1e-12)
    best = f"<think>{'x' * 51}</think>" + text.replace('"A":2,"B":1', '"A":1,"B":2').replace('"A","B"', '"B","A"')
    assert paid(best) == pytest.approx(1.0, abs=1e-12)


def test_saying_nothing_is_worth_nothing_unless_it_is_asked_for() -> None:
    """As released it is worth more than a judge that gets a pair wrong."""
    assert paid("") == 0.0 and paid("{}", unranked=1.0) == 0.9
    wrong = '{"scores":{"A":2,"B":1,"C":3},"best-to-worst":["C","A","B"]}'
    assert paid("", unranked=1.0) > paid(wrong) > paid("")
    with pytest.raises(DataError, match="Problem 'p/2' has no list of answers to rank"):
        ListwiseReward().worth("", Problem("p/2", "?"))


@pytest.mark.slow
def test_names_are_drawn_by_seed_step_and_occurrence_and_nothing_else() -> None:
    problem = principles.problems("train")[3]
    again = renamed(problem, 0, context())
    assert again == renamed(problem, 0, context())
    asked, answers, targets = candidates_of(problem)
    value = dict(zip(answers, targets))
    seen = [renamed(problem, n, context(t, s)) for n in (0, 1) for t in range(150) for s in (0, 1)]
    for other in (again, *seen):
        found = candidates_of(other)
        assert (other.id, other.prompt) == (problem.id, listed(asked, found.answers))
        assert dict(zip(found.answers, found.targets)) == value
    counts = Counter(tuple(p.info["candidates"]) for p in seen)
    assert len(counts) == 24 and max(counts.values()) < 25 + 5 * 5  # 600 draws of 24 orders: 25 each, deviation 4.9


@pytest.mark.slow
def test_a_group_sees_the_same_names_and_is_paid_by_them() -> None:
    loop = LanguageLoop(
        set_values(get_method("reward-anything"), {"problems": 2, "experience.size": 3, "experience.max_tokens": 2}),
        principles, random_policy(context=192), seed=0, steps=1,
    )  # fmt: skip
    asked = loop.method.experience.collect(  # type: ignore[union-attr]
        [principles.problems("train")[0]] * 2, dataclasses.replace(context(), task=principles, policy=loop.policy)
    )
    prompts = [episode.problem.prompt for episode in asked]
    assert len(set(prompts[:3])) == len(set(prompts[3:])) == 1 and prompts[0] != prompts[3]
    for episode in asked:
        assert episode.segments[0].text == episode.problem.prompt
        assert principles.score(episode.problem, principles.demonstration(episode.problem)) > 0.5


@pytest.mark.slow
def test_a_task_without_lists_is_told() -> None:
    method = set_values(get_method("reward-anything"), {"problems": 2})
    check(method, principles)
    with pytest.raises((ConfigError, DataError), match="has no list of answers to rank"):
        LanguageLoop(method, Toy(), random_policy(), seed=0, steps=1).step()


class Short(Toy):
    """Two answers, of which the same one is always better; of eight worked verdicts two are wrong."""

    max_tokens: int = 32

    def problems(self, split: str) -> list[Problem]:
        made = []
        for i, answers in enumerate((["a", "z"], ["z", "a"]) * 4):
            info = {"asked": "", "candidates": answers, "targets": [float(said == "z") for said in answers]}
            made.append(Problem(f"{split}-{i}", listed("", answers), info=info))
        return made

    def demonstration(self, problem: Problem) -> str:
        scores = "01" if (problem.info["candidates"][0] == "a") == (int(problem.id[-1]) < 6) else "10"
        return f'{{"scores":{{"A":{scores[0]},"B":{scores[1]}}}}}'


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_judge_that_knows_the_form_learns_to_rank() -> None:
    """From verdicts of which a quarter is wrong to hardly any; a verdict in this form and right is worth 0.96."""
    policy, task = random_policy(context=64), Short()
    changes = {"problems": 8, "optimizer.lr": 1e-2}
    shown = LanguageLoop(set_values(get_method("sft"), changes), task, policy, seed=0, steps=80)
    for _ in range(80):
        shown.step()
    ranked = {"problems": 12, "experience.size": 4, "optimizer.lr": 1e-3}
    loop = LanguageLoop(set_values(get_method("reward-anything"), ranked), task, policy, seed=0, steps=12)
    rewards = [loop.step().metrics["reward"] for _ in range(12)]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.05
    assert sum(rewards[-3:]) / 3 > 0.8
