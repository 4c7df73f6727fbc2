"""Grammar stories: which are coherent, what they are worth, and what the writer writes."""

from __future__ import annotations

import pytest

from etude.core.episodes import Episode, Segment
from etude.core.errors import UnknownNameError
from etude.core.streams import Stream
from etude.policies.word_tokenizer import THINGS, words
from etude.tasks import resolve_task
from etude.tasks.language.grammar_stories import (
    broken,
    drawn,
    events_in,
    grammar_stories,
    quality,
    told,
)
from etude.tasks.pool import reserved


def story(*events: str) -> str:
    return "".join(f" {event} ana mill." for event in events)


def test_there_are_sixty_words_and_texts_are_read_in_them_alone() -> None:
    assert len(words("stories")) == 60
    assert events_in(story("finds-lamp", "mends-comet")) == [("finds", "lamp"), ("mends", "comet")]
    for text in ("finds-lamp ana mill.", " finds-lamp ana mill", " finds-lamp ana ana.", " sees-lamp ana mill.",
                 " finds-cat ana mill.", " finds-lamp ana mill. "):  # fmt: skip
        assert events_in(text) is None


def test_what_comes_before_its_time_is_counted() -> None:
    def wrong(*events: str) -> int:
        return broken(events_in(story(*events)) or [])

    assert wrong("finds-lamp", "breaks-lamp", "mends-lamp", "uses-lamp", "loses-lamp", "finds-lamp") == 0
    assert wrong("uses-lamp") == wrong("finds-lamp", "finds-lamp") == wrong("finds-lamp", "uses-rope") == 1
    assert wrong("finds-lamp", "loses-lamp", "uses-lamp", "breaks-lamp", "breaks-lamp") == 2  # used, broken twice
    assert wrong("mends-lamp", "uses-lamp") == 1  # what it leaves holds all the same


def test_a_story_is_worth_most_half_way_between_common_and_rare() -> None:
    def of(*places: int) -> float:
        return quality(story(*(f"finds-{THINGS[i]}" for i in places)))

    assert of(0, 1, 2, 3, 4, 5) == pytest.approx(4 * (15 / 54) * (1 - 15 / 54))
    assert of(2, 3, 4, 5, 6, 7) == pytest.approx(1.0) == pytest.approx(4 * 0.5 * 0.5)
    assert of(4, 5, 6, 7, 8, 9) == pytest.approx(4 * (39 / 54) * (15 / 54))
    assert of(0, 1, 2, 3, 4) == 0 == of(0, 1, 2, 3, 4, 4)  # five sentences; found twice
    assert quality(story(*["finds-lamp", *["uses-lamp"] * 5])) == 0  # nothing but the commonest


def test_problems_and_what_is_written_of_them() -> None:
    assert resolve_task("grammar-stories") == grammar_stories
    worth: list[list[float]] = []
    for split in grammar_stories.splits():
        for i in range(40):
            problem = grammar_stories.problems(split)[i]
            opening = str(problem.prompt)
            assert len(events_in(opening) or []) == 1 and reserved(opening) == (split == "test")
            worked = str(problem.info["demonstration"])
            events = events_in(opening + worked)
            assert events is not None and len(events) == 6 and not broken(events)
            assert len(grammar_stories.solution_steps(worked)) == 5
            scores = [grammar_stories.score(problem, text) for text in problem.info["responses"]]
            assert scores == problem.info["scores"] and len(scores) == 4
            worth.append([grammar_stories.score(problem, worked), *scores])
            won = grammar_stories.success(Episode(problem, [Segment("assistant", worked)]))
            assert won == (worth[-1][0] >= 0.8)
    worked, usual, out, other, mixed = (sum(column) / len(worth) for column in zip(*worth))
    assert 0.3 < worked < 0.5 and abs(worked - usual) < 0.1  # most of what is told is common
    assert out < usual / 2 and mixed < other / 2 and other > usual + 0.2
    with pytest.raises(UnknownNameError):
        grammar_stories.problems("dev")


def test_common_things_are_told_of_more_often_and_nothing_before_its_time() -> None:
    random = Stream(0).numpy
    counts = [0] * len(THINGS)
    for _ in range(2000):
        counts[drawn(random, 0.5)] += 1
    for place in range(3):
        assert counts[place] / 2000 == pytest.approx(0.5 ** (place + 1) / (1 - 2**-10), abs=0.04)
    for _ in range(50):
        assert broken(events_in(story("finds-kite") + "".join(told("kite", 1.0, random))) or [("mends", "")]) == 0
