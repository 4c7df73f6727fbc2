"""Generated problems: each is accepted, pooled or given, refused ones are counted by reason, and resume is exact."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from etude.core.batches import TokenBatch
from etude.core.episodes import Problem
from etude.core.kept import Kept
from etude.core.registry import get_method
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.curricula.accepted import AcceptedProblems
from etude.curricula.generated import Generated
from etude.curricula.rules import AnswerUntold, LongEnough, Rule, ShortEnough, refusal
from etude.experience.groups import Groups
from language_toys import letters_reward, make_loop, random_policy, resumed_exactly

pytestmark = pytest.mark.usefixtures("one_thread")

NAMES = [f"{a}{b}{c}{d}" for a in "bdg" for b in "aeo" for c in "lmn" for d in "aio"]
POOL = [Problem(f"{n}", f"It was {name} and then {2 * n}") for n, name in enumerate(NAMES)]


class Numbers(Rule):
    """The answer is a number, else 'word'."""

    def refuses(self, problem: Problem) -> str | None:
        return None if str(problem.answer).isdigit() else "word"


def chosen(part: Generated, steps: int, count: int = 8, pool: Sequence[Problem] = POOL) -> list[tuple[list[str], Any]]:
    """The ids of each step, and what was counted."""
    found = []
    for step in range(steps):
        ids = [p.id for p in part.choose(pool, count, Stream(3).split("step", step))]
        found.append((ids, dict(part.counts())))
        part.after_update(None)  # type: ignore[arg-type]  # nothing of it is read
    return found


def test_each_problem_is_accepted_or_pooled_or_given_and_refused_ones_have_a_reason() -> None:
    part = Generated(rules=(Numbers(),), share=0.75, tries=2).bind()
    for ids, counts in chosen(part, 6):
        made = [i for i in ids if "/" in i]
        assert counts["generated/accepted"] + counts["generated/pooled"] == len(made) <= 6
        assert counts["generated/given"] == 8 - len(made) >= 2
        tried = counts["generated/accepted"] + sum(
            n for name, n in counts.items() if name.split("/")[1] in ("word", "nothing", "repeated")
        )
        assert tried <= 12 and (counts["generated/accepted"] == 6 or tried == 12)
    assert all(Numbers().refuses(e) is None for e in part.pool.drawn(99, Stream(0).numpy))


def test_without_a_source_of_problems_the_pool_is_used_up_and_then_the_task_s_own() -> None:
    part = Generated(pool=AcceptedProblems(age=2)).bind()
    assert chosen(part, 1)[0][1] == {"generated/accepted": 8, "generated/pooled": 0, "generated/given": 0}
    nothing = [Problem("none", "so")]
    (_, second), (ids, third) = chosen(part, 2, 5, nothing)
    assert second == {"generated/accepted": 0, "generated/pooled": 5, "generated/given": 0, "generated/nothing": 20}
    assert third["generated/pooled"] == 0 and ids == ["none"] * 5


def test_what_is_in_the_pool_is_not_made_again() -> None:
    part, found = Generated(pool=AcceptedProblems(), tries=20).bind(), set[str]()
    for ids, counts in chosen(part, 8, 2, [Problem("one", "so it was then in Bourg")]):
        assert counts["generated/accepted"] == len({*ids} - found - {"one"})
        found |= {*ids} - {"one"}
    assert found == {"one/blanks10", "one/blanks18"} and len(part.pool) == 2


def test_at_most_so_many_are_new() -> None:
    counts = [counts for _, counts in chosen(Generated(new=2).bind(), 5)]
    assert [c["generated/accepted"] for c in counts] == [2] * 5
    assert [c["generated/pooled"] for c in counts] == [0, 2, 4, 6, 6]


def test_reasons_come_in_the_order_of_the_rules() -> None:
    asked = Problem("1", "one two three", "two")
    assert refusal((LongEnough(words=4), AnswerUntold()), asked) == "too_short"
    assert refusal((AnswerUntold(), LongEnough(words=4)), asked) == "tells"
    assert refusal((LongEnough(words=3), ShortEnough(characters=12)), asked) == "too_long"
    assert refusal((), asked) is None
    assert AnswerUntold().refuses(Problem("1", "[1] and two", "one;two", info={"gold": ["one", "two"]})) == "tells"


# Shelf life


def test_a_shelf_life_of_each_and_of_all_together() -> None:
    aged, emptied = AcceptedProblems(age=2).bind(), AcceptedProblems(emptied=3).bind()
    sizes = []
    for step in range(7):
        for pool in (aged, emptied):
            pool.at(step)
            pool.put([Problem(f"{step}", "?")])
        sizes.append((len(aged), len(emptied)))
    assert sizes == [(1, 1), (2, 2), (2, 3), (2, 1), (2, 2), (2, 3), (2, 1)]
    aged.at(6)  # again in the same step, as another round of it
    assert len(aged) == 2
    assert len(AcceptedProblems(limit=1).bind().drawn(3, Stream(0).numpy)) == 0


def test_what_is_drawn_stays_and_comes_once() -> None:
    pool = AcceptedProblems(limit=30).bind()
    pool.put(POOL[:36])
    drawn = pool.drawn(99, Stream(0).numpy)
    assert len(pool) == len(drawn) == 30 and sorted(p.id for p in drawn) == sorted({p.id for p in drawn})
    assert pool.has(drawn[0]) and not pool.has(POOL[-1])


def test_kept_goes_by_its_own_clock_or_by_one_that_it_is_told() -> None:
    kept = Kept(Kept.empty(), age=2)
    kept.step()
    assert kept.state["now"] == 1
    kept.at(7)
    assert kept.state["now"] == 7


# In a run


class Told(LanguageTask):
    """Texts."""

    id: ClassVar[str] = "told"

    def problems(self, split: str) -> Sequence[Problem]:
        return POOL

    def score(self, problem: Problem, completion: str) -> float:
        return letters_reward(problem, completion)


def loop() -> Any:
    part = Generated(rules=(Numbers(),), new=2, pool=AcceptedProblems(age=2))
    method = get_method("grpo").replace(problems=3, experience=Groups(size=2, max_tokens=3), curriculum=part)
    return make_loop(method, Told(), random_policy())


@pytest.mark.slow
def test_counts_are_in_the_metrics_and_a_run_goes_on_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    steps = resumed_exactly(loop, tmp_path)
    first = steps[0]
    assert (first["generated/accepted"], first["generated/pooled"], first["generated/given"]) == (2, 0, 1)
    assert sum(step.get("generated/word", 0) for step in steps) > 0


def test_a_batch_is_not_read() -> None:
    part = Generated().bind()
    part.after_update(TokenBatch.__new__(TokenBatch))
    assert part.pool.now == 1
