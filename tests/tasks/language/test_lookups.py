"""The generated task of two skills: what is right, how often the writer slips, and what leaks."""

from __future__ import annotations

import pytest

from etude.core.episodes import Problem
from etude.core.errors import ConfigError, UnknownNameError
from etude.tasks import resolve_task
from etude.tasks.language.lookups import LETTERS, TABLE, Lookups, lookups, right
from etude.tasks.pool import reserved


def test_what_is_looked_up_has_one_answer() -> None:
    assert set(TABLE) == set(LETTERS) and len(set(TABLE.values())) > 5
    digits = "".join(str(TABLE[letter]) for letter in "dkqt")
    assert lookups.score(Problem("1", "=dkqt>"), digits) == 1
    for wrong in (digits[:-1], digits + "0", digits[::-1], "", str((int(digits[0]) + 1) % 10) + digits[1:]):
        assert not right("=dkqt>", wrong)


def test_what_is_followed_has_three_constraints() -> None:
    for said in ("kabz", "akbz", "kkkz"):
        assert right("!4kz>", said)
    for broken in ("kaz", "kabcz", "abcz", "kabc", "k1bz", "kab>", ""):
        assert not right("!4kz>", broken)


def test_problems_and_who_wrote_their_answers() -> None:
    assert resolve_task("lookups") == lookups
    lengths: dict[str, set[int]] = {}
    for split in lookups.splits():
        for problem in lookups.problems(split)[:200]:
            prompt = str(problem.prompt)
            assert reserved(prompt) == (split != "train")
            assert right(prompt, problem.answer) and problem.level == {"=": "look", "!": "follow"}[prompt[0]]
            lengths.setdefault(split, set()).add(len(problem.answer))
    assert lengths == {"train": {2, 4}, "test": {2, 4}, "unseen": {3}}
    for skill in ("look", "follow"):
        own = Lookups(skills=(skill,)).problems("train")[:400]
        slipped = [p for p in own if not right(str(p.prompt), p.info["demonstration"])]
        assert {p.level for p in own} == {skill} and abs(len(slipped) - 160) < 4 * (400 * 0.24) ** 0.5
    sure = Lookups(slips=0.0).problems("train")[:50]
    assert all(p.info["demonstration"] == p.answer for p in sure)
    with pytest.raises(UnknownNameError):
        lookups.problems("dev")
    with pytest.raises(ConfigError, match="at least one entry"):
        Lookups(skills=())


def test_a_share_of_the_training_prompts_leaked() -> None:
    assert not any(reserved(str(p.prompt)) for p in lookups.problems("train")[:400])
    leaked = [p for p in Lookups(leaked=0.2).problems("train")[:400] if reserved(str(p.prompt))]
    assert abs(len(leaked) - 80) < 4 * (400 * 0.16) ** 0.5
