"""The claim of HPT: against SFT, GRPO and SFT then GRPO; longer problems; how much is imitated."""

from __future__ import annotations

from typing import Any

from etude.evaluation.arms import Question, findings, variant
from etude.evaluation.rlvr.watched import ends, runs, scores
from etude.stages.phases import Phase
from etude.tasks.language.sums import Sums

STEPS, COUNT = 32, 3
SLACK = 0.05
"""By how much accuracy on longer problems may be lower and still count as no worse."""


def imitated(loop: Any) -> float:
    """Share of the step's problems that were imitated."""
    filters = loop.method.filters
    return float(filters[0].state["imitated"]) if filters and filters[0].name == "performance-gate" else 0.0


def experiment() -> dict[str, Any]:
    """Five arms of equal steps, one optimizer step each, on problems of three to six terms; then seven terms."""
    hpt, grpo = variant("hpt", {"minibatches": 1}), variant("grpo")
    arms = {
        "hpt": hpt,
        "sft": variant("sft", {"problems": grpo.problems}),
        "grpo": grpo,
        "sft-then-grpo": grpo.replace(stages=(Phase(like="sft", end=0.5), Phase())),
        "mixture": variant(hpt, {"filters.performance-gate.rl": (0.5,), "filters.performance-gate.sft": (0.5,)}),
    }
    tests = {"same": Sums(), "longer": Sums(terms=(7,))}
    found = runs(arms, Sums(), seeds=COUNT, steps=STEPS, watch=imitated, tests=tests, samples=4)
    accuracy = {arm: scores(found[arm], "pass@1/same") for arm in arms}
    questions = [
        Question(f"accuracy against {other}", {"hpt": accuracy["hpt"], other: accuracy[other]})
        for other in ("sft-then-grpo", "grpo", "sft")
    ]
    longer = {arm: scores(found[arm], "pass@1/longer") for arm in arms}
    questions += [
        Question(
            f"accuracy on seven terms against {SLACK} less than grpo's",
            {"hpt": longer["hpt"], "grpo less slack": [x - SLACK for x in longer["grpo"]]},
        ),
        Question(
            "share of problems imitated",
            {"last quarter": [ends(r.watched)[1] for r in found["hpt"]],
             "first quarter": [ends(r.watched)[0] for r in found["hpt"]]},
            direction="lower",
        ),
    ]  # fmt: skip
    more = {"pass@1": accuracy, "pass@1 on seven terms": longer}
    return findings(questions, task="sums, 3 to 6 terms", steps=STEPS, seeds=COUNT, more=more)
