"""The store of rows and fields: who may have what, when, and how often."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.core.errors import ConfigError, InvariantError, UnknownNameError
from etude.loops.states import join_tensors, split_tensors
from etude.runtime.checkpoints import load_json, load_tensors, save_json, save_tensors
from etude.runtime.store import Reads, Store, Taken, balanced

TASKS = {
    "reward": Reads(("answer",)),
    "reference": Reads(("answer", "prompt")),
    "train": Reads(("answer", "reward", "logp"), whole=True),
}
FIELDS = ("prompt", "answer", "reward", "logp")


def filled(groups: int, size: int) -> Store:
    store = Store(TASKS)
    for group in range(groups):
        store.open(group, range(group * size, (group + 1) * size))
    return store


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 1 << 30))
def test_any_schedule_gives_every_task_every_row_once_and_whole_groups(groups: int, size: int, seed: int) -> None:
    """Fields come in any order, tasks ask at any time, rows are dropped in between."""
    store = filled(groups, size)
    rows = range(groups * size)
    chance = random.Random(seed)
    coming = [(row, name) for row in rows for name in FIELDS]
    chance.shuffle(coming)
    dropped = set(chance.sample(rows, chance.randrange(len(rows))))
    had: dict[str, list[int]] = {task: [] for task in TASKS}
    produced: dict[int, set[str]] = {row: set() for row in rows}
    gone: set[int] = set()

    def ask(task: str) -> None:
        taken = store.get(task, 1)
        for place, row in enumerate(taken.rows):
            assert set(TASKS[task].fields) <= produced[row], "read before it was produced"
            assert {name: column[place] for name, column in taken.values.items()} == {
                name: (row, name) for name in TASKS[task].fields
            }
        if TASKS[task].whole and taken.rows:
            group = taken.rows[0] // size
            assert set(taken.groups) == {group}
            assert set(taken.rows) == set(range(group * size, (group + 1) * size)) - gone
        had[task] += taken.rows

    for row, name in coming:
        if row not in gone:
            if row in dropped and chance.random() < 0.5 and row not in had["train"]:
                store.drop([row])
                gone.add(row)
            else:
                store.put(row, {name: (row, name)})
                produced[row].add(name)
        if chance.random() < 0.5:
            ask(chance.choice(sorted(TASKS)))
    for task, _ in itertools.product(TASKS, rows):
        ask(task)
    for task in TASKS:
        assert len(had[task]) == len(set(had[task]))
        assert set(had[task]) >= set(rows) - gone
    assert not set(had["train"]) & gone
    assert len(store) == 0 and not store.groups and not any(store.ready.values())


def test_it_is_all_or_nothing_and_first_come_in_order() -> None:
    store = filled(1, 4)
    for row in (2, 0, 3):
        store.put(row, {"answer": row})
    assert store.get("reward", 4).rows == []
    assert store.waiting("reward") == 3
    assert store.get("reward", 2) == Taken([0, 2], [0, 0], {"answer": [0, 2]})  # who came first, by number
    assert store.get("reward", 2).rows == []


def test_what_was_given_back_is_given_again() -> None:
    store = filled(1, 2)
    store.put(1, {"answer": "yes"})
    assert store.get("reward", 1).rows == [1]
    store.give_back("reward", [1])
    assert store.get("reward", 1).rows == [1]
    with pytest.raises(InvariantError, match="Row 0 cannot be given back: 'reward' has not had it"):
        store.give_back("reward", [0])


def test_what_cannot_be() -> None:
    store = filled(1, 2)
    store.put(0, {"answer": 1})
    with pytest.raises(InvariantError, match="Row 0 has its answer already"):
        store.put(0, {"answer": 2, "prompt": 3})
    assert store.get("reference", 1).rows == [], "nothing of it was put"
    with pytest.raises(InvariantError, match="Row 7 is not in the store"):
        store.put(7, {"answer": 1})
    with pytest.raises(InvariantError, match="Row 1 of group 3 is in the store already"):
        store.open(3, [1])
    with pytest.raises(UnknownNameError, match=r"no task of this store named 'rewards'.*Did you mean 'reward'"):
        store.get("rewards", 1)
    with pytest.raises(ConfigError, match="at least one task"):
        Store({})


@pytest.mark.parametrize("cut", range(0, 12, 2))
def test_it_is_restored_from_a_checkpoint_exactly(cut: int, tmp_path: Path) -> None:
    """With tensors in it, in the files of a checkpoint, in the midst of what it does."""
    store, again = filled(3, 1), Store(TASKS)
    steps = [(row, name) for name in ("answer", "reward", "logp", "prompt") for row in (2, 0, 1)]

    def go(of: Store, part: list[tuple[int, str]]) -> list[Any]:
        found = []
        for row, name in part:
            of.put(row, {name: torch.full((3,), float(row)) if name == "logp" else [row, name]})
            found += [of.get(task, 1) for task in sorted(TASKS)]
        return found

    go(store, steps[:cut])
    plain, tensors = split_tensors(store.state_dict())
    save_json(tmp_path / "state.json", plain)
    save_tensors(tmp_path / "state.safetensors", tensors)
    again.load_state_dict(
        join_tensors(load_json(tmp_path / "state.json"), load_tensors(tmp_path / "state.safetensors"))
    )
    one, other = go(store, steps[cut:]), go(again, steps[cut:])
    assert str(one) == str(other)
    assert json.dumps(split_tensors(store.state_dict())[0]) == json.dumps(split_tensors(again.state_dict())[0])


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 500), max_size=40), st.integers(1, 9))
def test_balanced_shares_have_every_row_once_and_little_difference(tokens: list[int], ranks: int) -> None:
    shares = balanced(tokens, ranks)
    assert len(shares) == ranks
    assert sorted(place for share in shares for place in share) == list(range(len(tokens)))
    loads = [sum(tokens[i] for i in share) for share in shares]
    least = max(-(-sum(tokens) // ranks), max(tokens, default=0))
    assert max(loads) <= 4 / 3 * best(tokens, ranks, least) + 1e-9
    assert max(loads) - min(loads) <= max(tokens, default=0)


def best(tokens: list[int], ranks: int, least: int) -> float:
    """The shortest possible time where there are few rows; else what none can be under."""
    if len(tokens) > 6 or ranks > 3:
        return max(least, 3 / 4 * max(sum(tokens[i] for i in s) for s in balanced(tokens, ranks)))
    found = [
        max(sum(t for t, mine in zip(tokens, whose) if mine == rank) for rank in range(ranks))
        for whose in itertools.product(range(ranks), repeat=len(tokens))
    ]
    return min(found)


def test_balanced_by_hand() -> None:
    assert balanced([7, 5, 4, 4, 2], 2) == [[0, 3], [1, 2, 4]]  # 11 and 11
    with pytest.raises(ConfigError, match="at least one rank, got 0"):
        balanced([1], 0)
