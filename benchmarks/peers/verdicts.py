"""The verdict on a peer's pairs by etude's rules, and how it stands to etude's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from _equivalence import equivalence

from etude.core.claims import Claim
from etude.core.errors import DataError
from etude.evaluation.gates import LEAST, Verdict, conclude, sequential
from etude.evaluation.pairs import Pair, Results
from etude.evaluation.verdicts import LOOKS, Outcome
from etude.runs.claims import measures_of

VOID = Outcome.VOID.value
ARMS = ("arm", "baseline")


def judged(claim: Claim, pairs: Sequence[Pair]) -> Verdict:
    """What the first 6, 12, 24, 48 pairs say: of the first look that decides, else of the last there is.

    As `gates.sequential`, but pairs may still be added: whether the bed could ever tell is asked of 48 of them alone.

    Raises: DataError for fewer than 6.
    """
    ordered = sorted(pairs, key=lambda pair: pair.seed)
    if len(ordered) < LOOKS[0]:
        raise DataError(f"A claim is judged after {LOOKS[0]} pairs at the earliest, got {len(ordered)}.")
    if len(ordered) >= LOOKS[-1]:
        return sequential(
            lambda n: Results.of(ordered[:n]), measures_of(claim), learned_on=claim.learned_on, equal=claim.equal
        )
    for count in (n for n in LOOKS if n <= len(ordered)):
        verdict = conclude(
            measures_of(claim), Results.of(ordered[:count]), learned_on=claim.learned_on, equal=claim.equal
        )
        if verdict.outcome is not Outcome.INCONCLUSIVE:
            break
    return verdict


def side(claim: Claim, pairs: Sequence[Pair]) -> dict[str, Any]:
    """A library's side of a record: its verdict, and the pairs that it follows from."""
    ordered = sorted(pairs, key=lambda pair: pair.seed)
    verdict = judged(claim, ordered)
    used = max(finding.pairs for finding in verdict.findings.values())
    return {**verdict.to_json(), "pairs": used, "runs": [pair.to_json() for pair in ordered]}


def pairs_in(said: Mapping[str, Any]) -> list[Pair]:
    """All pairs of a side; its verdict follows from the first `pairs` of them."""
    return [Pair.from_json(each) for each in said["runs"]]


def agreement(own: str, theirs: str) -> str:
    """Whether two verdicts are the same answer.

    >>> agreement("held", "held"), agreement("held", "equivalent"), agreement("void", "held")
    ('yes', 'no', 'no answer here')
    """
    if VOID in (own, theirs):
        return "no answer here" if own == VOID else "no answer there"
    return "yes" if own == theirs else "no"


def libraries(claim: Claim, own: Sequence[Pair], theirs: Sequence[Pair]) -> dict[str, Any]:
    """Both libraries on each core measure: the effect, and each arm by itself, by equivalence over all pairs.

    The smallest difference that matters is that of the claim, else a tenth of what the arm gains in etude; of the
    effect, a tenth of what the better arm gains.
    """
    found = {}
    for measure in (m for m in measures_of(claim) if m.role == "core"):
        name = measure.name
        columns = [Results.of(pairs) for pairs in (own, theirs)]
        scores = {which: [np.array(getattr(c, which)[name]) for c in columns] for which in ARMS}
        scores["effect"] = [arm - baseline for arm, baseline in zip(*scores.values())]
        start = np.mean(columns[0].start[name])
        gains = {which: abs(float(scores[which][0].mean() - start)) for which in ARMS}
        gains["effect"] = max(gains.values())
        found[name] = {
            which: {
                **equivalence(*both, measure.smallest or max(LEAST, gains[which] / 10)),
                "means": [round(float(x.mean()), 4) for x in both],
            }
            for which, both in scores.items()
        }
    return found
