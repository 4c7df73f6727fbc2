"""Lists of words that are ranked by what a principle says."""

from __future__ import annotations

import pytest

from etude.core.episodes import Segment
from etude.core.errors import UnknownNameError
from etude.rewards.verdicts import candidates_of, formed, listed, verdict_of
from etude.tasks.language.digest import VOCABULARY
from etude.tasks.language.principles import ATOMS, COMMON, KNOWN, RARE, UNSEEN, Principles, principles, shares, worth


def test_atoms_by_hand() -> None:
    rare, often = (next(w for w in VOCABULARY if (w in RARE) == which) for which in (True, False))
    shown = often + rare
    assert {atom: of(often * 2 + rare + "~", shown) for atom, of in ATOMS.items()} == pytest.approx(
        {"s": 4 / 7, "l": 3 / 7, "d": 3 / 8, "n": 3 / 4, "r": 1 / 4, "p": 3 / 4}, abs=1e-12
    )
    assert shares("+s-p", often * 8, shown) == [0.0, 0.0] and worth("+l+p", often * 8, shown) == 1.0
    assert len(RARE) == 12 and sum(COMMON) == pytest.approx(1)


def test_unseen_principles_are_other_pairs_of_the_same_atoms() -> None:
    """No two of the 32 rank all lists alike, and each unseen atom was met in training with either sign it has."""
    assert (len(KNOWN), len(UNSEEN)) == (24, 8) and not set(KNOWN) & set(UNSEEN)
    answers = [p.info["candidates"] for p in (principles.problems("train")[i] for i in range(40))]
    shown = [p.info["asked"].partition("|")[2] for p in (principles.problems("train")[i] for i in range(40))]
    ranks = {
        principle: tuple(
            tuple(sorted(range(4), key=lambda j: (-worth(principle, said[j], words), j)))
            for said, words in zip(answers, shown)
        )
        for principle in KNOWN + UNSEEN
    }
    assert len(set(ranks.values())) == 32
    signed = {p[k : k + 2] for p in KNOWN for k in range(0, len(p), 2)}
    assert {p[k : k + 2] for p in UNSEEN for k in range(0, len(p), 2)} <= signed


def test_problems_are_lists_and_worked_verdicts_are_well_formed() -> None:
    found = []
    for split in principles.splits():
        for i in range(50):
            problem = principles.problems(split)[i]
            asked, answers, targets = candidates_of(problem)
            assert problem.prompt == listed(asked, answers) and len(set(answers)) == 4
            assert all(1 <= len(said) <= 8 and set(said) <= set(VOCABULARY) for said in answers)
            assert (asked.partition("|")[0] in UNSEEN) == (split == "test")
            text = principles.demonstration(problem)
            assert formed(text, "ABCD") == pytest.approx(0.95) and len(text) < principles.max_tokens
            assert set(verdict_of(text).numbers.values()) <= {1.0, 2.0, 3.0, 4.0, 5.0}
            found.append(principles.score(problem, text))
            if split != "train":
                principle, _, shown = asked.partition("|")
                assert targets == [1 + 4 * worth(principle, said, shown) for said in answers]
    assert 0.8 < sum(found) / len(found) < 1
    with pytest.raises(UnknownNameError):
        principles.problems("dev")


def test_judges_disagree_less_than_two_apart_and_sure_ones_round_alike() -> None:
    targets = [t for i in range(100) for t in principles.problems("train")[i].info["targets"]]
    assert {round(3 * t) for t in targets} == set(range(3, 16))
    sure = Principles(noise=0.0).problems("train")
    assert all(float(t).is_integer() for i in range(30) for t in sure[i].info["targets"])
    assert principles.problems("train")[7] == Principles(size=9).problems("train")[7]
    assert principles.problems("train")[7] != Principles(seed=1).problems("train")[7]


def test_what_an_episode_is_left_with() -> None:
    world, problem = principles.environment(), principles.problems("test")[0]
    world.reset(problem, 0)
    exact = ",".join(f'"{n}":{t}' for n, t in candidates_of(problem).wanted.items())
    ended = world.step(Segment("assistant", f'{{"scores":{{{exact}}}}}'))
    assert (ended.reward, ended.terminated, ended.info) == (1.0, True, {"tau": 1.0, "ndcg": 1.0})
    ended = world.step(Segment("assistant", "no"))
    assert ended.reward == 0.0 and ended.info["tau"] == -1.0
