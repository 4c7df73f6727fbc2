"""Derivations: texts that are right, and what is asked about them."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from etude.core.errors import ConfigError, UnknownNameError
from etude.core.streams import Stream
from etude.tasks.language.derivations import LARGEST, Derivations, asked_for, derivation, derivations


def test_texts_do_what_they_say() -> None:
    random = Stream(0).numpy
    for count in (2, 3, 4, 8) * 50:
        head, *steps = derivation(count, random)
        done = re.findall(r"([+*-])(\d+)", head)
        value = int(re.match(r"\d+", head)[0])  # type: ignore[index]
        assert len(steps) == len(done) == count
        for (operator, operand), step in zip(done, steps):
            after = {"+": value + int(operand), "-": value - int(operand), "*": value * int(operand)}[operator]
            assert step == f"{value}{operator}{operand}={after};"
            assert 0 < after <= LARGEST
            value = after


def test_every_kind_is_asked_and_its_worked_answer_is_right() -> None:
    task = Derivations(asks=("next", "middle", "answer"))
    for split in task.splits():
        pool, levels = task.problems(split), Counter[str]()
        for problem in (pool[i] for i in range(300)):
            said = str(task.demonstration(problem))
            assert task.score(problem, said) == 1.0
            assert task.score(problem, said[:-2]) == 0.0
            levels[problem.level] += 1
        assert set(levels) == {"next", "middle", "steps3", "steps4"}
        assert min(levels["next"], levels["middle"], levels["steps3"] + levels["steps4"]) > 60


def test_a_middle_segment_whose_next_is_hidden_is_a_next_one() -> None:
    """Row rlpt, identity 3: the same texts, the same places, the same prompts."""
    both = [Derivations(asks=(kind,)).problems("train") for kind in ("next", "middle")]
    for i in range(200):
        following, middle = (pool[i] for pool in both)
        assert following.info == middle.info
        shown = middle.info["following"][1]
        assert str(middle.prompt).replace("_" + shown, "") == following.prompt
    text = derivation(4, Stream(1).numpy)
    assert {asked_for(text, i, hidden=True) for i in (1, 2, 3)} == {"".join(text[:i]) + "?" for i in (1, 2, 3)}


def test_segments_between_the_first_and_the_last_are_asked_for() -> None:
    pool = Derivations(asks=("next",), steps=(4,)).problems("train")
    left = Counter(len(pool[i].info["following"]) for i in range(600))
    assert set(left) == {2, 3, 4}
    assert min(left.values()) > 150


def test_several_segments_may_be_said_at_once_but_no_wrong_one_and_none_without_marks() -> None:
    problem = Derivations(asks=("middle",), steps=(4,)).problems("train")[0]
    following = problem.info["following"]
    for j in range(1, len(following) + 1):
        text = "".join(following[:j])
        assert derivations.score(problem, f"so [{text}]") == 1.0
        assert derivations.score(problem, text) == derivations.score(problem, f"[{text}1+1=2;]") == 0.0


def test_splits_share_no_text_and_others_do_not_exist() -> None:
    heads = [{derivations.problems(s)[i].prompt for i in range(300)} for s in derivations.splits()]
    assert not heads[0] & heads[1]
    with pytest.raises(UnknownNameError):
        derivations.problems("dev")
    with pytest.raises(ConfigError, match="at least one entry"):
        Derivations(asks=())
