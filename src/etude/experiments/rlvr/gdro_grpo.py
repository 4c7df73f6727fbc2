"""The claim of GDRO-GRPO: pass@8 on hard problems, and where weight and completions go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from etude.advantages.group import GroupAdvantage
from etude.experiments.arms import Question, findings, variant
from etude.experiments.watched import FewCompose, ends, runs, scores
from etude.tasks.language.compose import Compose

if TYPE_CHECKING:
    from etude.loops.language import LanguageLoop

STEPS, COUNT, PROBLEMS = 32, 3, 16
LEVELS = (1, 1, 1, 1, 2, 2, 2, 2, 3, 4)
"""Four fifths easy problems, one fifth hard ones."""


def bin_index(loop: LanguageLoop) -> float:
    """How far the adversary has moved towards harder (lower) bins: 0 where it treats all alike."""
    from etude.methods.rlvr.gdro_grpo import PromptGDRO, RolloutGDRO

    weighing, sampling = loop.method.advantages, loop.method.experience
    if isinstance(weighing, PromptGDRO):
        q = weighing.q()
        return float(sum(b * w for b, w in enumerate(q)) - (len(q) - 1) / 2)
    if isinstance(sampling, RolloutGDRO) and sampling.state["chosen"]:
        bands = list(sampling.state["chosen"].values())
        sizes = [sampling.state["played"][str(b)] for b in bands]
        return float(sum(b * n for b, n in zip(bands, sizes)) / sum(sizes) - sum(bands) / len(bands))
    return 0.0


def experiment() -> dict[str, Any]:
    """Each adversary against GRPO with the same clip, minibatches and completions in all."""
    from etude.methods.rlvr.gdro_grpo import RolloutGDRO

    prompt = variant("gdro-grpo", {"problems": PROBLEMS})
    plain = prompt.replace(advantages=GroupAdvantage())
    arms = {"prompt-gdro": prompt, "rollout-gdro": plain.replace(experience=RolloutGDRO()), "grpo": plain}
    task, hard = FewCompose(levels=LEVELS, size=128), Compose(levels=(3, 4))
    found = runs(arms, task, seeds=COUNT, steps=STEPS, watch=bin_index, tests={"hard": hard, "all": task})
    questions = [
        Question(
            f"pass@8 on hard problems, {arm}",
            {arm: scores(found[arm], "pass@8/hard"), "grpo": scores(found["grpo"], "pass@8/hard")},
        )
        for arm in ("prompt-gdro", "rollout-gdro")
    ]
    questions += [
        Question(
            f"bin index of {what} less that of equal treatment, last quarter of the steps",
            {arm: [ends(r.watched)[1] for r in found[arm]], "equal": [0.0] * COUNT},
            direction="lower",
        )
        for arm, what in (("prompt-gdro", "the adversary's distribution"), ("rollout-gdro", "completions"))
    ]
    more = {name: {arm: scores(found[arm], name) for arm in arms} for name in ("pass@1/hard", "pass@1/all")}
    return findings(questions, task=f"compose, 128 problems, levels {LEVELS}", steps=STEPS, seeds=COUNT, more=more)
