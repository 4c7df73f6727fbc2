"""Numbers that do not mean what they say."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from etude.core.claims import Measure
from etude.evaluation.exhibits import Exhibit, Report
from etude.evaluation.gates import Results, conclude
from etude.evaluation.pairs import Pair
from etude.evaluation.pass_at_k import pass_at_k
from etude.evaluation.verdicts import Outcome
from etude.tasks.language.files import DataFile

given: dict[str, Any] = {}
"""What the fault changes of an experiment."""


@contextmanager
def giving(**faulty: Any) -> Iterator[None]:
    """The experiment with something else in it."""
    given.update(faulty)
    try:
        yield
    finally:
        given.clear()


def estimated() -> Iterator[dict[str, float]]:
    """pass@5 of three problems."""
    samples = given.get("samples", 8)
    right = np.zeros((3, samples), bool)
    right[0, :2] = True
    yield {"pass@5": float(pass_at_k(right, 5).mean())}


def divided() -> Iterator[str]:
    """What a task says of its two files, before anything is trained."""
    with tempfile.TemporaryDirectory() as folder:
        rows = [{"prompt": f"{n} + {n} =", "answer": str(2 * n)} for n in range(20)]
        parts = {"train": rows[:15], "test": given.get("test", slice(15, 20))}
        parts["test"] = rows[parts["test"]]
        for name, part in parts.items():
            text = "".join(json.dumps(row) + "\n" for row in part)
            (Path(folder) / f"{name}.jsonl").write_text(text, encoding="utf-8")
        yield from DataFile(folder).warnings()


def concluded() -> Iterator[str]:
    """The gates that a comparison did not pass, as its verdict has them."""
    draw = np.random.default_rng(0).normal
    pairs = [_pair(seed, draw) for seed in range(given.get("pairs", 6))]
    measures = [Measure(name="score", smallest=0.05)]
    verdict = conclude(measures, Results.of(pairs), learned_on="score", equal=["environment steps"])
    yield from (void.sentence for void in verdict.voids)
    if verdict.outcome is not Outcome.HELD:
        yield f"verdict: {verdict.outcome.value}"


def _pair(seed: int, draw: Any) -> Pair:
    arm, baseline = 0.7 + draw(0, 0.01), 0.6 + draw(0, 0.01)
    weights: Sequence[str] = (f"a{seed}", f"b{seed}")
    if given.get("fixed"):
        arm, baseline = 0.7, 0.6
    return Pair(
        seed=seed, arm={"score": arm}, baseline={"score": baseline}, start={"score": 0.1}, weights=tuple(weights),
        budgets={"environment steps": (given.get("steps", 100_000.0), 100_000.0)},
    )  # fmt: skip


exhibits = (
    Exhibit(
        id="pass-at-k-of-too-few",
        kind="statistics",
        report=Report(thread="nuprl/MultiPL-E#40", title="Reported pass@k silently wrong for n<k"),
        says="With fewer samples than k the estimator returned 1: a model that solved nothing had solved everything.",
        mechanism="pass@5 is asked of two samples for each problem.",
        inject=lambda: giving(samples=2),
        run=estimated,
        expect="k must be between 1 and the number of samples per problem",
    ),
    Exhibit(
        id="test-rows-in-train",
        kind="statistics",
        report=Report(
            thread="OpenRLHF/OpenRLHF#1089",
            title="Is there any data leakage when the eval_dataset parameter is not specified in train_rm.py?",
        ),
        says="Without an evaluation set the first hundredth of the training rows was taken for one: the model was "
        "tested on what it had learned.",
        mechanism="the test file repeats rows of the training file.",
        inject=lambda: giving(test=slice(0, 5)),
        run=divided,
        expect="are in the training set too",
    ),
    Exhibit(
        id="another-budget",
        kind="statistics",
        report=Report(thread="google-research/rliable#5", title="RAD results may be incorrect."),
        says="One method's log counted policy steps and the others' environment steps: it was scored after several "
        "times the data, and stood in the published comparison like that.",
        mechanism="one arm has had four times the steps of the other.",
        inject=lambda: giving(steps=400_000.0),
        run=concluded,
        expect="give both the same, or claim something at equal cost",
    ),
    Exhibit(
        id="seed-without-effect",
        kind="statistics",
        report=Report(
            thread="openvla/openvla#172",
            title="The seed in openvla/experiments/robot/libero/run_libero_eval.py has no effect on the eval result",
        ),
        says="Evaluations with seeds 7 and 42 were the same episode for episode: a mean over seeds would have been one "
        "run counted several times.",
        mechanism="all pairs of runs end alike, whatever their seed.",
        inject=lambda: giving(fixed=True),
        run=concluded,
        expect="with every seed: let the seed draw what the claim is about",
    ),
    Exhibit(
        id="one-seed",
        kind="statistics",
        report=Report(
            thread="quantumiracle/Popular-RL-Algorithms#47", title="please evaluate the performance over multiple seeds"
        ),
        says="A table of algorithms was made of one run each: which was best was a matter of chance.",
        mechanism="an experiment has one pair of runs.",
        inject=lambda: giving(pairs=1),
        run=concluded,
        expect="inconclusive",
    ),
)
