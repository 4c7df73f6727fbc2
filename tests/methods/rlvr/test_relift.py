"""ReLIFT: what goes on the buffer, when it is learned from, and what is left of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from etude.core.edit import set_values
from etude.core.episodes import Problem
from etude.core.kept import restored
from etude.core.registry import get_method
from etude.curricula.kept import HardProblems
from etude.experience.groups import Groups
from etude.loops.language import LanguageLoop
from etude.policies.language import LanguagePolicy
from etude.rewards.patterns import GradedReward
from etude.tasks import resolve_task
from language_toys import random_batch

pytestmark = pytest.mark.usefixtures("one_thread")
FORM = "[^>]*"
RELIFT: Any = get_method("relift").replace(problems=6, experience=Groups(size=2))


def sized(size: int, **changes: Any) -> Any:
    return set_values(RELIFT, {"stages.0.chooser.size": size, **changes})


def make(method: Any, steps: int = 8, task: Any = None) -> LanguageLoop:
    return LanguageLoop(method, task or resolve_task("compose"), LanguagePolicy.load("tiny"), seed=0, steps=steps)


def play(loop: LanguageLoop, steps: int) -> list[dict[str, float]]:
    timed = ("tokens_per_second", "seconds/experience", "seconds/update")
    return [{k: v for k, v in loop.step().metrics.items() if k not in timed} for _ in range(steps)]


def same(one: LanguageLoop, other: LanguageLoop) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.policy.parameters(), other.policy.parameters()))


def waiting(loop: LanguageLoop) -> list[str]:
    chooser: Any = loop.method.stages[0].chooser
    return [item["problem"]["id"] for item in chooser.buffer.state["items"]]


# What is kept


def scored(scores: list[float]) -> Any:
    """Three problems with three, one and four completions; right is what is paid 1."""
    batch = random_batch((3, 1, 4))
    paid = torch.tensor(scores)
    return batch.replace(scores=paid, solved=paid >= 1)


@pytest.mark.parametrize(
    ("scores", "settings", "expected"),
    [
        ([0, 0, 0, 1, 0, 0, 0, 1], {}, ["p0"]),
        ([0, 0, 0, 0, 0, 0, 0, 0], {}, ["p0", "p1", "p2"]),
        ([0, -1, 0, 0, 0, 0, 0, 0], {}, ["p1", "p2"]),  # one without the right form
        ([0, -1, 0, 0, 0, 0, 0, 0], {"floor": -1.0}, ["p0", "p1", "p2"]),
        ([0, 0, 1, 1, 0, 0, 0, 1], {"at_most": 0.25}, ["p2"]),
        ([0, 0, 1, 1, 0, 0, 0, 1], {"at_most": 0.34}, ["p0", "p2"]),
    ],
)
def test_problems_that_are_never_solved_are_kept(scores: list[float], settings: Any, expected: list[str]) -> None:
    part = HardProblems(**settings).bind()
    part.before_update(scored(scores))
    assert [e.problem.id for e in part.kept.take(9)] == expected


def test_written_and_auxiliary_rows_say_nothing_about_the_policy() -> None:
    batch = scored([0] * 8)
    written = torch.tensor([False] * 3 + [True] + [False] * 4)
    batch = batch.replace(written=written, solved=torch.tensor([False, False, True] + [False] * 5))
    batch.episodes[2].auxiliary = True
    part = HardProblems().bind()
    part.before_update(batch)
    assert [e.problem.id for e in part.kept.take(9)] == ["p0", "p2"]


def test_advantages_of_what_is_never_solved_are_nothing() -> None:
    batch = scored([0, 0, 0, 1, 0, 0, 0, 1])
    advantages = RELIFT.advantages(batch)
    assert not bool(advantages[:3].any()) and bool(advantages[4:].any())


# Runs


@pytest.mark.slow
def test_where_every_problem_is_solved_it_is_its_reinforcement() -> None:
    """Nothing is kept where a kept problem had to be paid more than there is."""
    without, parent = make(sized(1, **{"stages.0.chooser.buffer.floor": 2.0})), make(RELIFT.replace(stages=()))
    logged = play(without, 3)
    play(parent, 3)
    assert same(without, parent) and not waiting(without)
    assert all(m["kept"] == m["other"] == 0 for m in logged)


class Paid(type(resolve_task("compose"))):  # type: ignore[misc]
    """Every completion is worth the same, whatever it says."""

    each: float = 1.0

    def score(self, problem: Problem, completion: str) -> float:
        return self.each


@pytest.mark.slow
def test_where_every_completion_is_right_it_is_its_reinforcement() -> None:
    without, parent = (make(method, task=Paid()) for method in (sized(1), RELIFT.replace(stages=())))
    logged = play(without, 2)
    play(parent, 2)
    assert same(without, parent) and not waiting(without)
    assert all(m["kept"] == m["other"] == 0 for m in logged)


@pytest.mark.slow
def test_a_problem_with_a_badly_formed_completion_is_not_kept() -> None:
    """The paper's reward: all are wrong, and those that say a second step have not the form."""
    graded = GradedReward(right=1.0, malformed=1.0, wrong=0.0, unformed=-1.0, pattern=FORM)
    loop = make(sized(99).replace(rewards=(graded,)), task=Paid(each=0.0))
    groups: dict[Any, list[Any]] = {}
    for episode in loop.step().episodes:
        groups.setdefault(episode["id"], []).append(episode["segments"][-1]["text"])
    formed = {name for name, said in groups.items() if all(re.fullmatch(FORM, text, re.DOTALL) for text in said)}
    assert 0 < len(formed) < len(groups) and sorted(waiting(loop)) == sorted(formed)


@pytest.mark.slow
@pytest.mark.parametrize("size", [5, 6])
def test_as_many_supervised_steps_as_the_buffer_was_filled(size: int) -> None:
    """floor(sum h / B) after so many steps of reinforcement, each of which keeps at most B."""
    loop = make(sized(size, problems=5), steps=14)
    kept = tuned = left = 0
    for _ in range(14):
        before = len(waiting(loop))
        other = loop.step().metrics["other"]
        tuned += int(other)
        kept += 0 if other else len(waiting(loop)) - before
        left = kept - tuned * size
        assert len(waiting(loop)) == left
    due = kept // size
    assert due > 1 and due - tuned in ((0, 1) if left >= size else (0,))


@pytest.mark.slow
def test_the_newest_come_first_and_their_worked_answers_are_learned() -> None:
    loop = make(sized(4))
    chooser: Any = loop.method.stages[0].chooser
    while True:
        before = waiting(loop)
        answers = [
            loop.task.demonstration(e.problem) for e in [restored(item) for item in chooser.buffer.state["items"][:4]]
        ]
        report = loop.step()
        if report.metrics["other"]:
            break
    assert [e["id"] for e in report.episodes] == before[:4] and waiting(loop) == before[4:]
    assert [e["segments"][-1]["text"].strip() for e in report.episodes] == answers and None not in answers


@pytest.mark.slow
def test_a_stop_with_a_buffer_that_is_half_full_changes_nothing(tmp_path: Path) -> None:
    whole, logged, kept = make(sized(4)), list[dict[str, float]](), list[list[str]]()
    for step in range(8):
        whole.save(tmp_path / str(step))
        kept.append(waiting(whole))
        logged += play(whole, 1)
    assert {m["other"] for m in logged} == {0.0, 1.0}
    for stop in range(1, 8):
        resumed = make(sized(4))
        resumed.load(tmp_path / str(stop))
        assert waiting(resumed) == kept[stop]
        assert play(resumed, 8 - stop) == logged[stop:]
        assert same(resumed, whole) and waiting(resumed) == waiting(whole)


@pytest.mark.slow
def test_it_takes_a_second_look_before_it_keeps_a_problem() -> None:
    """With critique-grpo's mended attempts: a problem of which one is right is not kept."""
    critique: Any = get_method("critique-grpo")
    stacked = sized(4).replace(second_look=critique.second_look, objective=critique.objective)
    loop = make(stacked)
    logged = play(loop, 5)
    assert any(m["other"] for m in logged)
    for m in logged:
        assert m["rows"] == (4 if m["other"] else 6 * 3)
    state: Any = loop.method.second_look
    assert state.state["problems"] == 6 * sum(not m["other"] for m in logged)
