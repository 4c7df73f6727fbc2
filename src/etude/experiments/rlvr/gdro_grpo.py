"""The claim of GDRO-GRPO: pass@8 on hard problems, and where weight and completions go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from etude.advantages.group import GroupAdvantage
from etude.evaluation.pairs import Pair
from etude.experiments.arms import START, pairs, variant
from etude.experiments.watched import FewCompose, Job, ends, run, runs, scores
from etude.tasks.language.compose import Compose

if TYPE_CHECKING:
    from etude.loops.language import LanguageLoop

STEPS, PROBLEMS = 40, 16
LEVELS = (1, 1, 1, 1, 2, 2, 2, 2, 3, 4)
"""Four fifths easy problems, one fifth hard ones."""
TASK, TESTS = FewCompose(levels=LEVELS, size=128), {"hard": Compose(levels=(3, 4))}
RELEASED = {"advantages.standardize": True, "advantages.rescaled": True}
"""As in the released code: bins are told apart by standardised losses. Bare ones are so near 0 here that the weights of
bins would differ by a thousandth. The bandit has that code's sign, too: with the paper's, the number of completions
that is played first gains by a negative loss, and no other is ever tried."""


def lead(loop: LanguageLoop) -> float:
    """How many bins of ten the adversary has moved towards harder problems: 0 where it treats all alike."""
    from etude.methods.rlvr.gdro_grpo import PromptGDRO, RolloutGDRO

    weighing, sampling = loop.method.advantages, loop.method.experience
    if isinstance(weighing, PromptGDRO):
        q = weighing.q()
        return float((len(q) - 1) / 2 - sum(b * w for b, w in enumerate(q)))
    if isinstance(sampling, RolloutGDRO) and sampling.state["chosen"]:
        bands = list(sampling.state["chosen"].values())
        sizes = [sampling.state["played"][str(b)] for b in bands]
        return float(sum(bands) / len(bands) - sum(b * n for b, n in zip(bands, sizes)) / sum(sizes))
    return 0.0


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """Each adversary against GRPO with the same clip, minibatches and completions in all."""
    from etude.methods.rlvr.gdro_grpo import RolloutGDRO

    prompt = variant("gdro-grpo", {"problems": PROBLEMS, "optimizer.lr": 2e-4, **RELEASED})
    plain = prompt.replace(advantages=GroupAdvantage())
    arms = {"weights": prompt, "completions": plain.replace(experience=RolloutGDRO(sign="code")), "grpo": plain}
    found = runs(arms, TASK, seeds=seeds, steps=STEPS, watch=lead, tests=TESTS, samples=8)
    first = run(Job("start", plain, TASK, START, 0, tests=TESTS, samples=8)).scores
    arm: dict[str, list[float]] = {}
    baseline: dict[str, list[float]] = {}
    start: dict[str, list[float]] = {}
    for name in ("weights", "completions"):
        for k in (1, 8):
            arm[f"pass@{k}, {name}"] = scores(found[name], f"pass@{k}/hard")
            baseline[f"pass@{k}, {name}"] = scores(found["grpo"], f"pass@{k}/hard")
            start[f"pass@{k}, {name}"] = [first[f"pass@{k}/hard"]] * len(seeds)
        arm[f"{name} on harder bins"] = [ends(r.watched)[1] for r in found[name]]
        arm[f"{name} moved"] = [ends([abs(x) for x in r.watched])[1] for r in found[name]]
    counts = {name: [float(sum(line["rows"] for line in r.metrics)) for r in done] for name, done in found.items()}
    return pairs(seeds, arm, baseline, start=start, budgets={"completions": (counts["completions"], counts["grpo"])})
