"""The generated task of strings with a rule: what is valid, where a string is lost, and who wrote the answers."""

from __future__ import annotations

import itertools

import pytest

from etude.core.episodes import Problem
from etude.core.errors import ConfigError, UnknownNameError
from etude.tasks import resolve_task
from etude.tasks.language.checksums import ALLOWED, CHOICES, REPAIR, SYMBOLS, Checksums, asked, checksums, walk
from etude.tasks.pool import reserved


def bad(pair: str) -> str:
    return next(s for s in SYMBOLS if s not in ALLOWED[pair])


def test_by_enumeration_four_of_eight_symbols_may_follow() -> None:
    assert len(ALLOWED) == 64 and all(len(set(a)) == CHOICES for a in ALLOWED.values())
    problem = Problem("1", "3:af>")
    whole = ["".join(s) for s in itertools.product(SYMBOLS, repeat=3)]
    right = {text for text in whole if checksums.score(problem, text)}
    assert len(right) == CHOICES**3
    for text in whole:
        string = "af" + text
        assert (text in right) == all(string[i] in ALLOWED[string[i - 2 : i]] for i in (2, 3, 4))


def test_a_mistake_is_for_good_unless_it_is_repaired_at_once() -> None:
    a = ALLOWED["af"][0]
    b = ALLOWED["f" + a][0]
    problem, wrong = Problem("1", "2:af>"), bad("af")
    for text in (a + b, wrong + REPAIR + a + b, a + bad("f" + a) + REPAIR + b, wrong + REPAIR + wrong + REPAIR + a + b):
        assert checksums.score(problem, text) == 1 and checksums.left(problem, text) is None
    lost = {
        wrong + a: 1, wrong + a + b: 1, a + REPAIR + b: 1, REPAIR: 0, a + b + ALLOWED[a + b][0]: 2, a + "?": 1,
        wrong + REPAIR + REPAIR: 2,
    }  # fmt: skip
    for text, place in lost.items():
        assert checksums.score(problem, text) == 0 and checksums.left(problem, text) == place
    for text in ("", a, wrong, a + wrong if wrong not in ALLOWED["f" + a] else a):  # not whole, and not lost either
        assert checksums.score(problem, text) == 0 and checksums.left(problem, text) is None


def test_problems_and_their_answers() -> None:
    assert resolve_task("checksums") == checksums
    task = Checksums(lengths=(8, 16), repairs=0.1)
    assert task.max_tokens == 21
    lengths, repaired = set(), 0
    for split in task.splits():
        for problem in task.problems(split)[:150]:
            first, length = asked(problem)
            lengths.add(length)
            assert reserved(first) == (split == "test")
            assert (
                task.score(problem, problem.info["demonstration"]) == task.score(problem, problem.info["chosen"]) == 1
            )
            text = problem.info["rejected"]
            place = task.left(problem, text)
            assert len(text) == length and task.score(problem, text) == 0
            assert place is not None or walk(first, text, length).open  # a slip of the last symbol is still open
            repaired += problem.info["demonstration"].count(REPAIR)
    assert lengths == {8, 16} and abs(repaired - 360) < 4 * 18
    assert not any(REPAIR in p.info["demonstration"] for p in Checksums(repairs=0.0).problems("train")[:50])
    with pytest.raises(UnknownNameError):
        task.problems("dev")
    with pytest.raises(ConfigError, match="at least one entry"):
        Checksums(lengths=())
