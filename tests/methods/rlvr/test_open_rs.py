"""Open-RS: cosine reward, form, repetition, curated problems, schedule (arXiv:2503.16219)."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from etude.advantages.group import GroupMean, GroupStd, scaled
from etude.core.episodes import Episode, Problem, Segment, StopReason
from etude.core.errors import ConfigError
from etude.core.registry import get_method
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.methods.rlvr.derl.reward import FormulaReward
from etude.methods.rlvr.open_rs import AccuracyReward, Curated
from etude.optimizers.adam import AdamW
from etude.optimizers.schedules import Linear
from etude.rewards.length import CosineReward
from etude.rewards.patterns import FormatReward, RepetitionPenalty
from etude.tasks.language.sums import sums

PROBLEM = Problem("p", "3+5+9=", "17")


def said(text: str, *, count: int | None = None, stop: StopReason = StopReason.END_OF_TEXT) -> Episode:
    """An episode of the problem, one token per character or `count` of them."""
    tokens = [ord(c) for c in text] if count is None else [7] * count
    reward = sums.score(PROBLEM, text)
    segment = Segment("assistant", text, tokens, [1] * len(tokens), [0.0] * len(tokens), reward=reward)
    return Episode(PROBLEM, [Segment("user", "3+5+9=", [1, 2], [0, 0], [0.0, 0.0]), segment], stop=stop)


def context(limit: int = 10) -> Context:
    return Context(sums, None, Stream(0), max_tokens=limit)


RIGHT, WRONG = "8,17", "8,18"


def test_cosine_reward_falls_for_right_answers_and_rises_for_wrong_ones() -> None:
    lengths = (0, 5, 10)
    found = [CosineReward().score([said(t, count=n) for n in lengths], context()) for t in (RIGHT, WRONG)]
    assert found[0] == pytest.approx([1.0, 0.75, 0.5], abs=1e-12)
    assert found[1] == pytest.approx([-1.0, -0.75, -0.5], abs=1e-12)


def test_cosine_reward_is_the_formula_of_the_paper_at_a_third() -> None:
    c = math.cos(math.pi / 3)
    expected = [0.5 + 0.5 * (1.0 - 0.5) * (1 + c), -0.5 + 0.5 * (-1.0 + 0.5) * (1 + c)]
    found = CosineReward(weight=2.0).score([said(RIGHT, count=4), said(WRONG, count=4)], context(12))
    assert found == pytest.approx([2 * x for x in expected], abs=1e-12)


def test_a_right_answer_is_worth_at_least_one_more_than_a_wrong_one() -> None:
    lengths = range(14)
    right, wrong = (CosineReward().score([said(t, count=n) for n in lengths], context()) for t in (RIGHT, WRONG))
    assert min(right) >= max(wrong) + 1 - 1e-12


def test_texts_beyond_the_full_length_stay_at_its_end() -> None:
    part = CosineReward(length=5)
    assert part.score([said(RIGHT, count=9), said(WRONG, count=9)], context()) == pytest.approx([0.5, -0.5], abs=1e-12)


@pytest.mark.parametrize("length", [0, 3, 7, 10])
def test_at_equal_lengths_advantages_are_those_of_accuracy(length: int) -> None:
    episodes = [said(t, count=length) for t in (RIGHT, WRONG, WRONG, RIGHT, WRONG, RIGHT)]
    rewards = [part.score(episodes, context()) for part in (CosineReward(), AccuracyReward())]
    centre, scale = GroupMean(), GroupStd(epsilon=0.0)
    found = [scaled(torch.tensor(r).double(), torch.zeros(6), centre, scale).tolist() for r in rewards]
    assert found[0] == pytest.approx(found[1], abs=1e-12)


def test_every_turn_has_the_whole_length() -> None:
    """Two turns of 3 and 7 of 10 tokens take half of what they may, not all of one turn's."""
    episode = said(RIGHT, count=3)
    episode.segments += [Segment("user", "?", [1] * 9, [0] * 9, [0.0] * 9), *said("", count=7).segments[1:]]
    assert CosineReward().score([episode], context()) == pytest.approx([0.75], abs=1e-12)
    assert CosineReward(length=5).score([episode], context()) == pytest.approx(
        [0.75 + 0.25 * math.cos(0.8 * math.pi)], abs=1e-12
    )
    part = FormulaReward(formula="g4", primitives=("outcome", "format", "steps", "length"))
    assert part.score([episode], context()) == pytest.approx([0.5 + 1e-6], abs=1e-12)


@pytest.mark.parametrize("stop", [StopReason.MAX_TOKENS, StopReason.CONTEXT_OVERFLOW])
def test_what_was_cut_has_no_answer(stop: StopReason) -> None:
    cut = said(RIGHT, count=10, stop=stop)
    assert sums.success(cut)  # its last number happens to be right
    assert AccuracyReward().score([cut, said(RIGHT)], context()) == [0.0, 1.0]
    assert FormatReward().score([cut, said(RIGHT)], context()) == [0.0, 1.0]
    assert CosineReward().score([cut], context()) == pytest.approx([-0.5], abs=1e-12)


def test_form_is_what_the_task_reads_or_what_a_pattern_says() -> None:
    episodes = [said(t) for t in ("8,18", "8,", "", "8,17 or so")]
    assert FormatReward(weight=0.5).score(episodes, context()) == [0.5, 0.0, 0.0, 0.5]
    assert FormatReward(pattern=r"\d+(,\d+)*").score(episodes, context()) == [1.0, 0.0, 0.0, 0.0]


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"FormatReward\.pattern must be a regular expression"):
        FormatReward(pattern="(")


def test_repetition_costs_the_share_of_ngrams_that_came_before() -> None:
    episodes = [said(t) for t in ("ababa", "abcab", "ab", "aaaaa")]
    assert RepetitionPenalty(size=2).score(episodes, context()) == pytest.approx([-0.5, -0.25, 0, -0.75], abs=1e-12)
    assert RepetitionPenalty(size=3, weight=2.0).score(episodes, context()) == pytest.approx(
        [-2 / 3, 0, 0, -4 / 3], abs=1e-12
    )


def test_prompts_do_not_count_as_repetition() -> None:
    episode = said("abc")
    episode.segments[0].tokens = [ord("a"), ord("b")]
    assert RepetitionPenalty(size=2).score([episode], context()) == [0.0]


# Curated problems


def visited(part: Curated, make_batch: Any, problem: str, solved: list[bool]) -> None:
    episodes = [Episode(Problem(problem, "?")) for _ in solved]
    part.before_update(make_batch([[1]] * len(solved), solved=torch.tensor(solved), episodes=episodes))


def test_trivial_and_hopeless_problems_are_left_out_once_judged(make_batch) -> None:
    pool = [Problem(str(i), "?") for i in range(10)]
    part = Curated(size=4, visits=2).bind()
    for _ in range(2):
        assert {p.id for p in part.choose(pool, 4, Stream(0))} == {"0", "1", "2", "3"}  # never beyond `size`
        visited(part, make_batch, "0", [True, True])
        visited(part, make_batch, "1", [False, False])
        visited(part, make_batch, "2", [True, False])
    chosen = [p.id for _ in range(6) for p in part.choose(pool, 2, Stream(0))]
    assert set(chosen) == {"2", "3"}
    assert len(chosen) == 12
    assert len(set(chosen[:2])) == 2


def test_one_visit_is_no_judgement_where_two_are_asked_for(make_batch) -> None:
    part = Curated(visits=2).bind()
    visited(part, make_batch, "0", [True, True])
    assert part.keeps("0")
    visited(part, make_batch, "0", [True, True])
    assert not part.keeps("0")


def test_if_every_problem_is_left_out_they_come_back(make_batch) -> None:
    part = Curated(size=2, visits=1).bind()
    for name in "01":
        visited(part, make_batch, name, [True, True])
    assert len(part.choose([Problem(str(i), "?") for i in range(2)], 3, Stream(0))) == 3


def test_bounds_that_leave_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="must be below"):
        Curated(hopeless=0.5, trivial=0.5)
    with pytest.raises(ConfigError, match="at most the 4 that are remembered"):
        Curated(visits=5)


# The schedule


def test_the_rate_rises_for_a_tenth_and_falls_to_a_tenth() -> None:
    part = get_method("open-rs").optimizer
    assert part.rate(0, 100) == pytest.approx(1 / 11, abs=1e-12)
    assert part.rate(10, 100) == pytest.approx(1.0, abs=1e-12)
    assert part.rate(55, 100) == pytest.approx(0.55, abs=1e-12)
    assert part.rate(100, 100) == pytest.approx(0.1, abs=1e-12)


def test_a_linear_schedule_falls_to_its_floor_and_a_constant_one_stays() -> None:
    assert AdamW(schedule=Linear(floor=0.2)).rate(50, 100) == pytest.approx(0.6, abs=1e-12)
    assert AdamW().rate(50, 100) == pytest.approx(1.0, abs=1e-12)
