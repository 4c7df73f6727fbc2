"""Open-RS's claim: three small runs of GRPO on a wordy model under a limit of length."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np

from etude.core.episodes import Problem
from etude.core.fields import Count, Probability
from etude.core.streams import Stream
from etude.experiments.arms import SEEDS, Question, Trained, Training, findings, run, started, variant
from etude.tasks.language.sums import Sums

STEPS = 100
RUNS = 3
FREE = 64
"""Tokens of a completion before there is a limit worth the name."""
HARD, MIXED = (4,), (3, 4)


class Wordy(Sums):
    """Sums whose worked answers write running totals down again and again: 8;8;8,17;17,19.

    Args:
        again: chance of writing a total (but the last) once more, each time; at most three times more.
        max_tokens: limit of one completion.
    """

    again: Probability = 0.6
    max_tokens: Count = FREE  # type: ignore[misc]  # of each task, where others have one for all

    def demonstration(self, problem: Problem) -> str:
        random = Stream(self.seed).split("wordy", problem.id).numpy
        terms = map(int, str(problem.prompt).rstrip("=").split("+"))
        totals = list(accumulate(terms))[1:]
        times = [*np.minimum(random.geometric(1 - self.again, size=len(totals) - 1), 4), 1]
        return ",".join(";".join([str(t)] * n) for t, n in zip(totals, times))


def experiment() -> dict[str, Any]:
    """Train the three arms from the same wordy policy, which is warmed up on worked answers of all lengths."""
    from etude.methods.rlvr.open_rs import accuracy_and_format, open_rs

    with started(Wordy(terms=MIXED), steps=200) as first:
        limit = cap(first.folder)
        arms = {
            "hard": (accuracy_and_format, HARD), "mixed": (accuracy_and_format, MIXED), "cosine": (open_rs, MIXED),
        }  # fmt: skip
        sizes = {"problems": 16, "curriculum.size": 1500}
        found = run(
            Training(
                name, variant(method, sizes), Wordy(terms=terms, max_tokens=limit), SEEDS + seed, STEPS, first.folder,
                problems=100, samples=4,
            )
            for seed in range(RUNS)
            for name, (method, terms) in arms.items()
        )  # fmt: skip
    return findings(questions(found), task="sums", steps=STEPS, seeds=RUNS, limit=limit, figures=figures(found))


def cap(folder: str) -> int:
    """The 70th percentile of the lengths that the policy in a folder writes on hard problems."""
    from etude.evaluation.language import evaluate_split
    from etude.policies.language import LanguagePolicy

    policy = LanguagePolicy.load(folder, device="cpu")
    looked = evaluate_split(policy, Wordy(terms=HARD), "train", problems=200, samples=2)
    return int(np.percentile([e.action_count for row in looked.episodes for e in row], 70))


def questions(found: dict[str, list[Trained]]) -> list[Question]:
    """The parts of the claim, from training curves."""
    half = STEPS // 2
    late = {k: [window(r, "accuracy", STEPS - 20, STEPS) for r in runs] for k, runs in found.items()}
    middle = [window(r, "accuracy", half - 20, half) for r in found["hard"]]
    early = [window(r, "accuracy", 0, 10) for r in found["hard"]]
    length = {k: [tokens(r) for r in runs] for k, runs in found.items()}
    nearly = [x - 0.05 for x in late["mixed"]]
    wander = {k: [unevenness(r) for r in runs] for k, runs in found.items()}
    return [
        Question("accuracy on hard problems, gained early", {"halfway": middle, "at first": early}),
        Question("accuracy on hard problems, lost late", {"at the end": late["hard"], "halfway": middle}, "lower"),
        Question("tokens on hard test problems", {"mixed": length["mixed"], "hard": length["hard"]}, "lower"),
        Question("unevenness of lengths", {"cosine": wander["cosine"], "mixed": wander["mixed"]}, "lower"),
        Question("accuracy late, about equal", {"cosine": late["cosine"], "mixed less 0.05": nearly}),
    ]  # fmt: skip


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


def figures(found: dict[str, list[Trained]]) -> dict[str, Any]:
    """What each arm was like at the beginning and at the end: means over seeds."""
    names = ("accuracy", "completion_length", "cut", "reward/format-reward")
    rows: dict[str, Any] = {}
    for arm, runs in found.items():
        rows[arm] = {
            f"{name} {when}": float(np.mean([window(r, name, *span) for r in runs]))
            for name in names
            for when, span in (("first", (0, 10)), ("last", (STEPS - 20, STEPS)))
        }
        rows[arm]["pass@1 on its problems"] = float(np.mean([r.pass_at(1) for r in runs]))
        rows[arm]["tokens sampled"] = float(
            np.mean([sum(m["completion_length"] * m["rows"] for m in r.metrics) for r in runs])
        )
    return rows
