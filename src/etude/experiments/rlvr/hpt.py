"""The claim of HPT: against SFT, GRPO and SFT then GRPO; longer problems; how much is imitated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from etude.experiments.arms import Question, findings, variant
from etude.experiments.watched import ends, runs, scores
from etude.stages.phases import Phase
from etude.tasks.language.compose import Compose

if TYPE_CHECKING:
    from etude.loops.language import LanguageLoop

STEPS, COUNT, PROBLEMS = 14, 3, 16
LEVELS = (2, 3)
SLACK = 0.05
"""By how much accuracy on longer problems may be lower and still count as no worse."""


def imitated(loop: LanguageLoop) -> float:
    """Share of the step's problems that were imitated."""
    filters = loop.method.filters
    return float(filters[0].state["imitated"]) if filters and filters[0].name == "performance-gate" else 0.0


def experiment() -> dict[str, Any]:
    """Five arms of equal steps, one optimizer step each, on chains of two and three functions; then of four."""
    from etude.methods.rlvr.hpt import PerformanceGate

    hpt, grpo = variant("hpt", {"minibatches": 1, "problems": PROBLEMS}), variant("grpo", {"problems": PROBLEMS})
    arms = {
        "hpt": hpt,
        "sft": variant("sft", {"problems": PROBLEMS}),
        "grpo": grpo,
        "sft-then-grpo": grpo.replace(stages=(Phase(like="sft", end=0.5), Phase())),
        "mixture": hpt.replace(filters=(PerformanceGate(rl=(0.5,), sft=(0.5,)),)),
    }
    tests = {"same": Compose(levels=LEVELS), "longer": Compose(levels=(4,))}
    found = runs(arms, Compose(levels=LEVELS), seeds=COUNT, steps=STEPS, watch=imitated, tests=tests, samples=4)
    accuracy = {arm: scores(found[arm], "pass@1/same") for arm in arms}
    questions = [
        Question(f"accuracy against {other}", {"hpt": accuracy["hpt"], other: accuracy[other]})
        for other in ("sft-then-grpo", "grpo", "sft")
    ]
    longer = {arm: scores(found[arm], "pass@1/longer") for arm in arms}
    questions += [
        Question(
            f"accuracy on four functions against {SLACK} less than grpo's",
            {"hpt": longer["hpt"], "grpo less slack": [x - SLACK for x in longer["grpo"]]},
        ),
        Question(
            "share of problems imitated",
            {"last quarter": [ends(r.watched)[1] for r in found["hpt"]],
             "first quarter": [ends(r.watched)[0] for r in found["hpt"]]},
            direction="lower",
        ),
    ]  # fmt: skip
    more = {"pass@1": accuracy, "pass@1 on four functions": longer}
    return findings(questions, task=f"compose, levels {LEVELS}", steps=STEPS, seeds=COUNT, more=more)
