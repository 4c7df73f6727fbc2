"""What is kept across steps: order, limits, age, and token for token what was sampled."""

from __future__ import annotations

import json

import pytest

from etude.core.episodes import Episode, Problem, Segment
from etude.core.kept import Kept, restored, stored
from language_toys import random_episodes


def filled(**settings) -> Kept:
    """Two problems in each of three steps: a0 a1, b0 b1, a0 b1."""
    kept = Kept(Kept.empty(), **settings)
    for names in (("a0", "a1"), ("b0", "b1"), ("a0", "b1")):
        kept.put([Episode(Problem(name, "?")) for name in names])
        kept.step()
    return kept


def names(kept: Kept) -> list[str]:
    return [e.problem.id for e in kept.take(len(kept))]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"order": "newest"}, "a0 b1 b0 b1 a0 a1"),
        ({"order": "oldest"}, "a0 a1 b0 b1 a0 b1"),
        ({"order": "newest", "limit": 3}, "a0 b1 b0"),
        ({"order": "oldest", "limit": 3}, "b0 a0 b1"),
        ({"order": "newest", "each": 1}, "a0 b1 b0 a1"),
        ({"order": "oldest", "each": 1}, "a1 b0 a0 b1"),
        ({"order": "newest", "age": 2}, "a0 b1"),
        ({"order": "oldest", "age": 3}, "b0 b1 a0 b1"),
        ({"order": "oldest", "age": 3, "each": 1, "limit": 2}, "a0 b1"),
    ],
)
def test_who_stays_and_who_comes_first(settings: dict, expected: str) -> None:
    assert names(filled(**settings)) == expected.split()


def test_ages_are_counted_in_steps() -> None:
    assert filled(order="newest").ages() == [1, 1, 2, 2, 3, 3]


def test_rounds_of_one_step_stay_in_their_order() -> None:
    kept = Kept(Kept.empty(), order="newest")
    for name in "abc":
        kept.put([Episode(Problem(name, "?"))])
    kept.step()
    kept.put([Episode(Problem("d", "?"))])
    assert names(kept) == ["d", "a", "b", "c"]


def test_what_is_taken_has_left_and_what_is_left_stays() -> None:
    kept = filled(order="newest")
    assert [e.problem.id for e in kept.take(2)] == ["a0", "b1"] and len(kept) == 4
    assert kept.take(9)[-1].problem.id == "a1" and len(kept) == 0 and kept.take(1) == []


def test_a_stop_in_the_middle_changes_nothing() -> None:
    """The state goes through JSON between any two steps."""
    whole = filled(order="newest", limit=5)
    state = Kept.empty()
    for step in (("a0", "a1"), ("b0", "b1"), ("a0", "b1")):
        kept = Kept(state, order="newest", limit=5)
        kept.put([Episode(Problem(name, "?")) for name in step])
        kept.step()
        state = json.loads(json.dumps(kept.state))
    assert state == whole.state and names(Kept(state, limit=5)) == names(whole)


def test_what_was_sampled_comes_back_token_for_token() -> None:
    """With the log-probabilities of when it was sampled."""
    for episode in random_episodes((2, 1), turns=2):
        again = restored(json.loads(json.dumps(stored(episode))))
        assert again.problem == episode.problem and again.written == episode.written
        for mine, theirs in zip(again.segments, episode.segments, strict=True):
            assert isinstance(mine, Segment) and mine == theirs
            assert mine.behaviour_logp == theirs.behaviour_logp


def test_some_of_each_problem_leave_in_order_with_their_facts() -> None:
    kept = Kept(Kept.empty(), order="oldest")
    kept.put([Episode(Problem(name, "?"), info={"facts": {"number": n}, "rest": 1}) for n, name in enumerate("aabaab")])
    assert [(e.problem.id, e.info) for e in kept.take_each(2)] == [
        ("a", {"facts": {"number": 0}}), ("a", {"facts": {"number": 1}}),
        ("b", {"facts": {"number": 2}}), ("b", {"facts": {"number": 5}}),
    ]  # fmt: skip
    assert [e.info["facts"]["number"] for e in kept.take_each(9)] == [3, 4] and not len(kept)
