"""Verdicts on lists: how they are formed, and how far they agree with what is wanted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import permutations, product

import pytest

from etude.core.episodes import Problem
from etude.core.errors import DataError
from etude.rewards.verdicts import (
    Verdict,
    candidates_of,
    formed,
    gain_of_order,
    in_agreement,
    listed,
    listwise_accuracy,
    names_of,
    pair_accuracy,
    verdict_of,
)

WANTED = {"A": 1.0, "B": 2.5, "C": 3.0, "D": 5.0}
OBJECT = '{"scores":{"A":1,"B":2,"C":3,"D":5},"best-to-worst":["D","C","B","A"]}'


def of(*scores: object, wanted: Mapping[str, float] = WANTED) -> float:
    return listwise_accuracy(dict(zip("ABCD", scores)), wanted)


def test_accuracy_of_the_right_order_the_opposite_one_and_of_none() -> None:
    for order in ((1, 2, 3, 5), (1, 2, 3, 4), (-100, 0.5, 0.75, 1e9)):
        assert of(*order) == 1.0
        assert of(*(-x for x in order)) == 0.0
    assert of(3, 3, 3, 3) == 0.5
    tied = {"A": 2.0, "B": 2.0, "C": 4.0}  # weights 1, 3, 3; the equal pair is right whatever is said of it
    assert of(1, 1, 1, wanted=tied) == pytest.approx(1 - 3 / 7, abs=1e-15)
    assert of(1, 2, 3, wanted=tied) == of(2, 1, 3, wanted=tied) == 1.0
    assert of(2, 1, 0, wanted=tied) == pytest.approx(1 / 7, abs=1e-15)


def test_accuracy_by_hand() -> None:
    """Pairs AB 2.5, AC 3, AD 5, BC 1.5, BD 3.5, CD 3: 18.5 in all."""
    assert of(2, 1, 3, 5) == pytest.approx(1 - 2.5 / 18.5, abs=1e-15)
    assert of(1, 2, 2, 5) == pytest.approx(1 - 0.75 / 18.5, abs=1e-15)
    assert of(5, 2, 3, 1) == pytest.approx(1 - (2.5 + 3 + 5 + 3.5 + 3) / 18.5, abs=1e-15)
    assert of(1, "no", 3, 2) == pytest.approx(1 - 3 / 11, abs=1e-15)  # without B
    assert listwise_accuracy({"A": 2, "B": 1, "E": 9}, WANTED) == 0.0


def test_accuracy_does_not_know_names_or_units() -> None:
    said = (2, 1, 5, 3)
    for order in permutations(range(4)):
        other = {name: WANTED["ABCD"[i]] for name, i in zip("ABCD", order)}
        assert of(*(said[i] for i in order), wanted=other) == pytest.approx(of(*said), abs=1e-15)
    for increasing in (lambda x: 10 * x - 3, math.exp, lambda x: x**3, str):
        assert of(*map(increasing, said)) == of(*said)


def test_accuracy_without_a_pair() -> None:
    """Fewer than two scored: 1, as in the released code, or what is asked for; pairs of no weight: 0."""
    for said in ({}, {"A": 1}, {"A": 1, "E": 2}):
        assert listwise_accuracy(said, WANTED) == 1.0 and listwise_accuracy(said, WANTED, 0.25) == 0.25
    for bad in ("no", None, [], math.nan, math.inf):
        assert of(bad, bad, bad, bad) == 0.0


def test_every_order_of_three_agrees_with_a_sum_over_pairs() -> None:
    wanted = {"A": 1.0, "B": 4.0, "C": 2.0}
    for said in product((1, 2, 3), repeat=3):
        by_name = dict(zip("ABC", said))
        lost = total = 0.0
        for high, low in (("B", "A"), ("C", "A"), ("B", "C")):
            weight = 1 + wanted[high] - wanted[low]
            total += weight
            lost += weight * (0.5 if by_name[high] == by_name[low] else by_name[high] < by_name[low])
        assert listwise_accuracy(by_name, wanted) == pytest.approx(1 - lost / total, abs=1e-12)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (f"<think>{'x' * 51}</think>{OBJECT}", 1.0),
        (f"<think>{'x' * 50}</think>\n{OBJECT}", 0.95),
        (f"<think>{' ' * 60}</think>{OBJECT}", 0.95),
        (f"<think>{OBJECT}", 0.05 + 0.15 + 0.2 + 0.2 + 0.2),
        (OBJECT, 0.8),
        (f"so {OBJECT}", 0.75),
        (f"<think></think>```{OBJECT}```", 0.15 + 0.75),
        ('{"scores":{"A":1,"B":2}}', 0.2 + 0.1 + 0.1),
        ('{"best-to-worst":["A"]}', 0.2 + 0.1),
        ('{"scores":{"A":1,"B":2,"E":3},"best-to-worst":["E","B","A"]}', 0.2 + 0.2 + 0.1 + 0.2),
        ('{"scores":[1,2,3,4],"best-to-worst":"ABCD"}', 0.4),
        ('{"other":1}', 0.2),
        ("{}", 0.0),
        ("[1]", 0.0),
        ("</think>", 0.05),
        ("<think></think>", 0.15),
        ("</think><think>", 0.15),
        ("", 0.0),
    ],
)
def test_how_well_a_verdict_is_formed(text: str, wanted: float) -> None:
    assert formed(text, names_of(4)) == pytest.approx(wanted, abs=1e-12)


def test_an_order_agrees_where_scores_do_not_contradict_it() -> None:
    def share(order: object, **scores: object) -> float:
        return in_agreement(Verdict({"scores": scores, "best-to-worst": order}))

    assert share(["C", "B", "A"], A=1, B=2, C=3) == 1.0
    assert share(["A", "B", "C"], A=1, B=2, C=3) == 0.0
    assert share(["A", "B", "C"], A=1, B=1, C=1) == 1.0
    assert share(["C", "A", "B"], A=1, B=2, C=3) == pytest.approx(2 / 3)
    assert share(["C", "C", "E", 3, "A"], A=1, C=3) == 1.0  # said twice, unknown, no name
    assert share(["A"], A=1) == share([], A=1) == share("AB", A=1, B=0) == share(["A", "B"], A="x", B=1) == 0.0


def test_what_is_read_of_a_text() -> None:
    assert verdict_of(f"<think>{OBJECT}</think>no").said == {}  # a thought is no verdict
    assert verdict_of('{"scores":{"A":true,"B":"2","C":"x","D":NaN}}').numbers == {"A": 1.0, "B": 2.0}
    assert verdict_of("{" * 100_000).said == {}
    assert verdict_of('{"scores":{"A":' + "9" * 5_000 + "}}").numbers == {}


def test_shares_of_pairs_and_gains_of_orders() -> None:
    assert pair_accuracy({"A": 1, "B": 2, "C": 3, "D": 4}, WANTED) == 1.0
    assert pair_accuracy({}, WANTED) == 0.0
    assert pair_accuracy({"A": 0, "B": 0, "C": 0, "D": 0}, WANTED) == 0.5
    assert pair_accuracy({"A": 1}, {"A": 2.0, "B": 2.0}) == 1.0
    wanted = {"A": 1.0, "B": 3.0, "C": 2.0}
    best = 3 + 2 / math.log2(3) + 1 / 2
    assert gain_of_order({"B": 3, "C": 2, "A": 1}, wanted) == 1.0
    assert gain_of_order({"C": 9, "A": 5}, wanted) == pytest.approx((2 + 1 / math.log2(3) + 3 / 2) / best, abs=1e-12)


def test_lists_are_told_apart_from_what_is_none() -> None:
    info = {"asked": "?", "candidates": ["x", "y"], "targets": [1, 2]}
    found = candidates_of(Problem("p/1", "", info=info))
    assert found.wanted == {"A": 1.0, "B": 2.0} and listed(*found[:2]) == "?\nA:x\nB:y\n"
    for without in info:
        with pytest.raises(DataError, match="Problem 'p/2' has no list of answers to rank"):
            candidates_of(Problem("p/2", "", info={k: v for k, v in info.items() if k != without}))
    with pytest.raises(DataError, match="got 1 targets for 2 candidates"):
        candidates_of(Problem("p/3", "", info={**info, "targets": [1]}))
    assert len(set(names_of(60))) == 60
