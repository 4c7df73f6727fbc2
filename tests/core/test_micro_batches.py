"""The plan of micro-batches: every row once, at most the budget held, a shared prompt counted once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.core.batches import TokenBatch
from etude.core.episodes import Episode, Problem, Segment
from etude.core.micro_batches import LEAST_ROOM, Rows, Sharing, by_length, plan
from etude.core.rows import to_batch

NEVER, ALWAYS, SHORT = Sharing(0.25, 0), Sharing(0.25, np.inf), Sharing(0.25, 50)
"""Prompts that are never copied, always, below 50 tokens."""


def batch_of(*groups: tuple[int, list[int]]) -> TokenBatch:
    """Groups of a prompt's length and its answers' lengths."""
    episodes = []
    for number, (prompt, answers) in enumerate(groups):
        for place, size in enumerate(answers):
            asked = Segment("user", "", [number + 3] * prompt, [0] * prompt, [0.0] * prompt)
            said = Segment("assistant", "", [place % 200 + 3] * size, [1] * size, [-1.0] * size)
            episodes.append(Episode(Problem("p", ""), [asked, said], number))
    return to_batch(episodes, 0, 1.0, torch.device("cpu"))


def sizes(batch: TokenBatch, budget: int, whole: bool = False, how: Sharing | None = NEVER) -> list[list[int]]:
    """Rows of each piece of a plan."""
    return [[len(piece) for piece in together] for together in plan(batch, budget, whole, how)]


GROUPS = st.tuples(st.integers(1, 90), st.lists(st.integers(1, 60), min_size=1, max_size=9))


@given(
    st.lists(GROUPS, min_size=1, max_size=5),
    st.integers(1, 900),
    st.booleans(),
    st.sampled_from([None, NEVER, ALWAYS, SHORT]),
)
@settings(max_examples=60, deadline=None)
def test_every_row_once_and_nothing_over_the_budget(
    groups: list[tuple[int, list[int]]], budget: int, whole: bool, how: Sharing | None
) -> None:
    batch = batch_of(*groups)
    rows = Rows.of(batch, how or Sharing())
    pieces = plan(batch, budget, whole, how)
    assert sorted(i for together in pieces for p in together for i in p.tolist()) == list(range(len(batch)))
    for together in pieces:
        every = np.concatenate([p.numpy() for p in together])
        if whole:
            assert len(together) == 1 and len(every) == np.isin(rows.group, rows.group[every]).sum()
        for piece in (p.numpy() for p in together):
            if (whole and len(set(rows.group[piece])) == 1) or len(piece) == 1:
                continue
            if len(together) > 1:
                assert len(set(rows.owner[every])) == 1, "rows that follow each other answer one prompt"
                prompt = int(rows.starts[piece].max())
                assert rows.answers(piece, prompt) <= max(budget - prompt, LEAST_ROOM * budget)
            elif how is None or not rows.pays():
                assert len(piece) * rows.lengths[piece].max() <= budget
            else:
                prompt = int(rows.starts[piece].max())
                assert rows.held(piece) <= max(budget, prompt + LEAST_ROOM * budget)


def test_a_shared_prompt_is_counted_once() -> None:
    batch = batch_of((4096, [64] * 8))
    assert sizes(batch, 8192) == [[8]]
    assert sizes(batch, 8192, how=None) == [[1]] * 8
    assert Rows.of(batch).held(np.arange(8)) == 4096 + 8 * 64


@pytest.mark.slow
def test_a_group_over_the_budget_is_cut_beside_its_prompt() -> None:
    batch = batch_of((4096, [64] * 256))
    assert sizes(batch, 8192) == [[64, 64, 64, 64]]
    assert sizes(batch, 8192, whole=True) == [[256]], "whole groups are not cut"
    assert sizes(batch_of((8192, [64] * 64)), 8192) == [[32, 32]], (
        "a prompt that fills the budget leaves a quarter of it"
    )


def test_copied_keys_and_values_count() -> None:
    batch = batch_of((1000, [50] * 8))
    assert Rows.of(batch, ALWAYS).held(np.arange(8)) == 1000 + 8 * (50 + 0.25 * 1050)
    assert sizes(batch, 2000) == [[8]] and sizes(batch, 2000, how=ALWAYS) == [[3, 3, 2]]


def test_short_prompts_that_are_not_worth_sharing_are_counted_with_every_row() -> None:
    batch = batch_of((2, [40, 60, 50]), (3, [60, 60]))
    assert not Rows.of(batch).pays()
    assert Rows.of(batch).held(np.arange(5)) == 5 * 63
    assert sizes(batch, 130) == sizes(batch, 130, how=None) == [[2], [1], [2]]


def test_rows_without_actions_and_empty_batches_are_planned() -> None:
    batch = batch_of((5, [3, 4]), (5, [2]))
    batch.action_mask = torch.zeros_like(batch.action_mask)
    assert (Rows.of(batch).starts == 1).all()
    assert plan(batch.rows(torch.tensor([], dtype=torch.long)), 10, False, NEVER) == []


def test_prompts_are_told_apart_by_their_tokens() -> None:
    rows = Rows.of(batch_of((4, [2, 3]), (6, [2]), (4, [2])))
    assert rows.owner.tolist() == [0, 0, 1, 2] and rows.first.tolist() == [0, 2, 3]
    assert rows.starts.tolist() == [4, 4, 6, 4]


@pytest.mark.parametrize("answers", [[600, 50, 640, 60], [10] * 5, [7]])
def test_pieces_hold_every_place_once(answers: list[int]) -> None:
    assert sorted(np.concatenate(by_length(np.array(answers))).tolist()) == list(range(len(answers)))
