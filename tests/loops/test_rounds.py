"""Groups of a step: the first that hold, against the scheduler on a simulated clock and against the plain loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.core.batches import TokenBatch
from etude.core.errors import ConfigError
from etude.core.fit import check
from etude.core.registry import get_method
from etude.experience.groups import Groups
from etude.filters.first import FirstGroups
from etude.filters.informative import InformativeGroups
from etude.loops.language import LanguageLoop
from etude.loops.learn import Trainer
from etude.loops.rounds import Entry, Race, Rows, gathered, raced, refilled
from etude.runtime.flow import Flow
from etude.runtime.orders import Sample
from etude.runtime.simulation import Laws
from etude.runtime.store import Taken
from etude.tasks.tabular.enumerable import Enumerable
from flow_toys import Watched, crew, scheduler_of, uniform, values
from language_toys import Toy, make_loop, random_batch, resumed_exactly

pytestmark = pytest.mark.usefixtures("one_thread")
FIRST, DYNAMIC = FirstGroups(extra=2), InformativeGroups(rounds=9)
METHOD: Any = get_method("roll")
Place = tuple[int, int]
"""A group by whom it replaces: its place among the first, and how many were there before it."""


def took(seed: int, place: Place) -> float:
    return 0.1 + 5 * uniform("took", seed, *place) ** 3


def holds(seed: int, place: Place, share: float) -> bool:
    return uniform("holds", seed, *place) >= share


def by_scheduler(seed: int, wanted: int, extra: int, share: float) -> tuple[float, list[Place], Counter[str]]:
    """When a step is full, the groups that it learns from, and how many ended how, of workers who take only time."""
    places = {number: (number, 0) for number in range(wanted + extra)}

    def judge(taken: Taken) -> Sequence[float]:
        at = places[taken.groups[0]]
        if not holds(seed, at, share):
            places[len(places)] = (at[0], at[1] + 1)  # the next that is begun takes its place
        return [float(holds(seed, at, share))] * len(taken.rows)

    def seconds(order: Sample) -> float:
        whole = took(seed, places[order.group])
        return whole if order.row % 3 == 0 else whole / 2  # the last row of a group ends it

    flow = Flow(steps=1, groups=wanted, size=3, extra=extra, rounds=99)
    law = Laws(sample=seconds, score=lambda order: 0.0, learn=lambda order: 0.0, values=values)
    run = Watched(scheduler_of(flow, crew(), judge), law).run()
    run.check()
    (batch,) = run.seen.learned
    counts = Counter({str(state): n // 3 for state, n in run.scheduler.ledger.counts.items()})
    return run.clock.now(), sorted(places[g] for g in set(batch.groups)), counts


def by_race(seed: int, wanted: int, extra: int, share: float) -> tuple[Race, dict[Place, Entry]]:
    race, entries, number = Race(wanted, extra), dict[Place, Entry](), 0
    while begun := race.begin():
        before = {entry.ended: place for place, entry in entries.items() if not entry.holds}
        for group, since in enumerate(begun):
            place = (group, 0) if not number else (before[since][0], before[since][1] + 1)
            entries[place] = Entry(since + took(seed, place), since, number, group, holds(seed, place, share))
        for entry in [entry for entry in entries.values() if entry.number == number]:
            race.ends(entry)
        number += 1
    return race, entries


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(0, 5), st.sampled_from([0.0, 0.4, 0.8]))
def test_the_first_that_hold_are_those_of_the_scheduler(seed: int, wanted: int, extra: int, share: float) -> None:
    """The same groups, full at the same time; of all groups that were begun each was accepted, dropped or aborted."""
    full, accepted, counts = by_scheduler(seed, wanted, extra, share)
    race, entries = by_race(seed, wanted, extra, share)
    first = race.first()
    assert race.full == pytest.approx(full, abs=1e-12)
    assert sorted(place for place, entry in entries.items() if entry in first and entry.holds) == accepted
    assert len(accepted) == wanted
    begun = [entry for entry in entries.values() if entry.begun < race.full]
    assert counts["accepted"] == wanted
    assert counts["dropped"] == sum(not entry.holds for entry in first)
    assert counts["aborted"] == len(begun) - len(first)


def test_of_groups_that_end_at_once_the_one_begun_first_is_first() -> None:
    race = Race(wanted=1, extra=2)
    race.begin()
    for group, (ended, good) in enumerate([(2.0, False), (5.0, True), (5.0, True)]):
        race.ends(Entry(ended, 0.0, 0, group, good))
    assert race.begin() == [2.0]
    race.ends(Entry(5.0, 2.0, 1, 0, True))
    assert [(e.number, e.group) for e in race.first()] == [(0, 0), (0, 1)]


# Rows: three of a group, whose longest says when it ends, and whose scores say whether it holds


def rows_of(lengths: Sequence[int], good: Sequence[bool], lost: Sequence[int] = ()) -> TokenBatch:
    """Groups of three rows of `length`, 1 and 1 tokens; of a group that does not hold all are paid alike."""
    batch = random_batch([3] * len(lengths), low=2, high=3)
    group, width = torch.arange(len(lengths)).repeat_interleave(3), max(lengths)
    counts = torch.tensor([[n, 1, 1] for n in lengths]).flatten()
    mask = torch.arange(width)[None] < counts[:, None]
    tokens = group[:, None] * 100 + torch.arange(width)[None]
    scores = torch.tensor([[float(yes), 0.0, 0.0] for yes in good]).flatten()
    found = replace(
        batch, tokens=tokens, attention_mask=mask, action_mask=mask, behaviour_logp=torch.zeros(tokens.shape),
        rewards=torch.zeros(tokens.shape), version=torch.zeros_like(tokens), group=group, scores=scores,
        draw=torch.arange(len(group)),
    )  # fmt: skip
    return found.rows((~torch.isin(group, torch.tensor(list(lost)))).nonzero()[:, 0]) if lost else found


def told(*batches: TokenBatch) -> tuple[Callable[[int, int], Rows], list[int]]:
    """What a loop gathers round by round, and of how many problems it is asked for them."""
    asked: list[int] = []

    def assess(count: int, number: int) -> Rows:
        asked.append(count)
        return {"policy": batches[number]}

    return assess, asked


def test_rows_of_the_first_groups_by_hand() -> None:
    """Three of five are needed; two are dropped, at 2 and at 6, and replaced then: full at 2 + 3."""
    begun = rows_of([5, 2, 4, 9, 6], [True, False, True, True, False])
    later = rows_of([3, 1], [True, True])
    assess, asked = told(begun, later)
    found = gathered({"policy": METHOD.replace(filters=(DYNAMIC, FIRST))}, 3, assess)
    assert asked == [5, 2]
    (learned,) = found.rows.values()
    # ends: 5, (2), 4, 9, (6); 2 + 3 = 5 behind the other that ends at 5, and 6 + 1, which is never begun
    assert learned.tokens[:, 0].tolist() == [0] * 3 + [200] * 3 + [0] * 3
    assert learned.group.unique().numel() == 3
    assert [b.group.unique().tolist() for b in found.assessed] == [[0, 1, 2], [0]]
    assert found.metrics == {"aborted": 9.0, "full_after": 5.0}


def test_a_group_that_nobody_could_make_is_replaced_as_it_begins() -> None:
    begun, later = rows_of([5, 1, 4], [True] * 3, lost=[1]), rows_of([2], [True])
    assess, asked = told(begun, later)
    found = raced(FIRST, 1, {"policy": METHOD}, 2, assess)
    assert asked == [3, 1]
    assert found.metrics["full_after"] == 4.0
    assert found.rows["policy"].tokens[:, 0].tolist() == [200] * 3 + [0] * 3


def test_where_too_few_hold_all_that_came_is_there() -> None:
    assess, asked = told(rows_of([3, 7], [False, True]))
    method = METHOD.replace(filters=(InformativeGroups(rounds=1), FirstGroups(extra=1)))
    found = gathered({"policy": method}, 1, assess)
    assert (asked, found.metrics) == ([2], {"aborted": 0.0, "full_after": 7.0})
    assess, asked = told(rows_of([3, 7], [False, False]))
    found = gathered({"policy": method}, 1, assess)
    assert found.metrics == {"aborted": 0.0, "full_after": 7.0} and not len(found.rows["policy"])


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=4, max_size=4), st.integers(0, 10**6))
def test_without_extra_groups_it_is_the_plain_loop(first: list[tuple[int, bool]], seed: int) -> None:
    """The third identity of the row: the same questions, and the same rows in the same order."""

    def outcome(race: bool) -> tuple[list[int], list[list[int]], list[list[list[int]]], list[float]]:
        asked: list[int] = []

        def assess(count: int, number: int) -> Rows:
            drawn = [(1 + int(9 * uniform(seed, number, i)), uniform(seed, number, i) > 0.4) for i in range(count)]
            lengths, good = zip(*(first if not number else drawn))
            asked.append(count)
            return {"policy": rows_of(lengths, good)}

        follow = {"policy": METHOD.replace(filters=(InformativeGroups(rounds=4),))}
        found = raced(FIRST, 0, follow, 4, assess) if race else refilled(follow, 4, assess)
        rows = found.rows["policy"]
        seen = [b.tokens.tolist() for b in found.assessed]
        return asked, rows.tokens.tolist(), seen, rows.weights.tolist()

    assert outcome(race=True) == outcome(race=False)


def test_a_group_of_several_players_holds_where_it_does_for_all() -> None:
    """It ends with whoever is last: the second group in the first player's rows, the first in the other's."""
    one = rows_of([2, 5, 3], [True, True, False])
    other = rows_of([6, 1, 1], [True, True, True])
    follow = {name: METHOD.replace(filters=(InformativeGroups(rounds=1), FIRST)) for name in ("one", "other")}
    found = raced(FIRST, 2, follow, 1, lambda count, number: {"one": one, "other": other})
    assert found.metrics == {"aborted": 6.0, "full_after": 5.0}
    assert [batch.group.unique().tolist() for batch in found.rows.values()] == [[1], [1]]
    assert [b.group.unique().tolist() for b in found.assessed] == [[1, 2], [1, 2]]


# In the loop


class Seen(FirstGroups):
    """Remembers the groups that parts are shown, by their problems and draws."""

    def initial_state(self) -> dict[str, Any]:
        return {"shown": []}

    def before_update(self, batch: TokenBatch) -> None:
        self.state["shown"].append(sorted(batch.draw.tolist()))


def uneven(problem: Any, text: str) -> float:
    """Paid by what is said, so that no two completions are likely to tie; nothing for one problem of three."""
    return 1.0 if problem.prompt == "x=" else sum(map(ord, text)) / 1e4


@pytest.mark.slow
@pytest.mark.parametrize("bound", [0, 1])
def test_aborted_rows_never_appear(bound: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is learned from, reported and shown to parts is what an independent count of the lengths says."""
    method = METHOD.replace(problems=3, experience=Groups(size=2, max_tokens=40), filters=(Seen(extra=3),))
    loop = make_loop(method, Toy(scoring=uneven), bound=bound, steps=4)
    batches, learned = [], []
    assess, learn = loop._assess, Trainer.learn

    def watched(*given: Any) -> Rows:
        rows = assess(*given)
        batches.append(rows["policy"])
        return rows

    def seen(self: Trainer, players: Any, rows: Any, *given: Any) -> Any:
        learned.append(sorted(rows["policy"].draw.tolist()))
        return learn(self, players, rows, *given)

    monkeypatch.setattr(loop, "_assess", watched)
    monkeypatch.setattr(Trainer, "learn", seen)
    for step in range(3):
        metrics = loop.step().metrics
        (batch,) = batches
        batches.clear()
        longest = [int(batch.action_mask[batch.group == g].sum(1).max()) for g in range(6)]
        first = sorted(range(6), key=lambda g: (longest[g], g))[:3]
        draws = sorted(batch.draw[torch.isin(batch.group, torch.tensor(first))].tolist())
        assert len(batch) == 12 and len(draws) == 6
        assert learned[step] == loop.method.filters[0].state["shown"][step] == draws
        assert metrics["full_after"] == max(longest[g] for g in first)
        assert (metrics["aborted"], metrics["rows"]) == (6.0, 6.0)
    if loop.ahead is not None:
        loop.ahead.close()


@pytest.mark.slow
@pytest.mark.parametrize("bound", [0, 1])
def test_a_run_goes_on_as_if_it_had_not_been_stopped(bound: int, tmp_path: Path) -> None:
    method = METHOD.replace(problems=3, experience=Groups(size=2, max_tokens=40), filters=(DYNAMIC, FIRST))

    def made() -> LanguageLoop:
        return make_loop(method, Toy(scoring=uneven), bound=bound, steps=4)

    steps = resumed_exactly(made, tmp_path)
    assert sum(step["aborted"] for step in steps[2:]) > 0


def test_what_it_cannot_work_with_is_said() -> None:
    for change, sentence in (
        ({"filters": (FIRST, Seen())}, "and so does Seen: leave one of them out"),
        ({"experience": get_method("sft").slots()["experience"]}, "keeps the completions that end first"),
    ):
        assert any(sentence in found for found in METHOD.replace(**change).objections())
    with pytest.raises(ConfigError, match=r"FirstGroups.* is for tasks of language"):
        check(METHOD, Enumerable())
