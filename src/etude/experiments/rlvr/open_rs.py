"""Open-RS's claim: a wordy model under a limit of length that cuts most of what it writes about hard problems."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from etude.evaluation.pairs import Pair
from etude.experiments.arms import Trained, language, pairs, started, untrained, variant
from etude.experiments.wordy import WARM, tokens_written
from etude.tasks.language.wordy import Wordy

STEPS = 60
HARD, MIXED = (4,), (3, 4)
CHANGES = {"problems": 16, "curriculum.size": 1500, "optimizer.lr": 2e-4}
CUT = 30.0
"""Percentile of the lengths on hard problems, as training samples them, that becomes the limit."""


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """Three arms from the same wordy policy: hard problems, mixed ones, and mixed ones with the cosine reward."""
    from etude.methods.rlvr.open_rs import accuracy_and_format, open_rs

    plain, ours = variant(accuracy_and_format, CHANGES), variant(open_rs, CHANGES)
    with started(Wordy(terms=MIXED), steps=WARM) as first:
        limit = tokens_written(first.folder, Wordy(terms=HARD), CUT, temperature=0.7)
        hard, mixed = (Wordy(terms=terms, max_tokens=limit) for terms in (HARD, MIXED))
        found = language({"cosine": ours, "mixed": plain}, mixed, seeds=seeds, steps=STEPS, start=first.folder)
        found |= language({"hard": plain}, hard, seeds=seeds, steps=STEPS, start=first.folder)
        before = untrained(plain, mixed, start=first.folder)
    sides = measured(found)
    start = {"accuracy": [before.pass_at(1)] * len(seeds)}
    return pairs(seeds, *sides, start=start)


def measured(found: dict[str, list[Trained]]) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Both sides of every measure, [seeds] each."""
    names = {"accuracy": right, "unevenness of lengths": unevenness, "lengths of one problem": spread, "cut": cut}
    sides = [{name: [of(r) for r in found[arm]] for name, of in names.items()} for arm in ("cosine", "mixed")]
    for side, arm in zip(sides, ("mixed", "hard")):
        side["tokens of hard problems"] = [tokens(r) for r in found[arm]]
    half = STEPS // 2
    first, middle, last = ([window(r, "accuracy", *span) for r in found["hard"]]
                           for span in ((0, 5), (half - 10, half), (STEPS - 10, STEPS)))  # fmt: skip
    sides[0] |= {"hard alone, gained early": middle, "hard alone, lost late": last}
    sides[1] |= {"hard alone, gained early": first, "hard alone, lost late": middle}
    return sides[0], sides[1]


def right(run: Trained) -> float:
    """Accuracy on test problems, under the limit."""
    return run.pass_at(1)


def cut(run: Trained) -> float:
    """Share of completions that the limit cut in the first five steps."""
    return window(run, "cut", 0, 5)


def spread(run: Trained) -> float:
    """How far two answers to the same test problem are apart, as a standard deviation in tokens."""
    assert run.lengths is not None
    return float(np.sqrt(np.square(run.lengths[:, 0] - run.lengths[:, 1]).mean() / 2))


def window(run: Trained, metric: str, start: int, stop: int) -> float:
    """Mean of a metric over some steps."""
    return float(np.mean([m[metric] for m in run.metrics[start:stop]]))


def tokens(run: Trained) -> float:
    """Mean length of what is said about hard test problems after training."""
    assert run.lengths is not None
    return float(run.lengths[[level == f"terms{HARD[0]}" for level in run.levels]].mean())


def unevenness(run: Trained) -> float:
    """Standard deviation of the mean length of a step around its course, in tokens, over the second half."""
    lengths = np.array([m["completion_length"] for m in run.metrics[STEPS // 2 :]])
    steps = np.arange(len(lengths))
    return float(np.std(lengths - np.polyval(np.polyfit(steps, lengths, 1), steps)))
