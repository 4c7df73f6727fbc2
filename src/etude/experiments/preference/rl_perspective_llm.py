"""The claim of rl-perspective-llm: imitation online, with a discriminator for a reward, against cloning for as long.

Both arms begin from one policy that was cloned from the same 500 worked answers of `checksums`, and go on from there.
Strings of 8, 16 and 32 symbols that nobody repairs show how mistakes add up: of a policy that errs with a chance of e
a symbol (1 - e)^H are valid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from etude.evaluation.pairs import Pair
from etude.experiments.arms import Training, pairs, started, untrained, variant
from etude.experiments.cells import by_label, spread, trained
from etude.tasks.language.checksums import Checksums

LENGTHS, SHOWN, TESTED = (8, 16, 32), 500, 400
TASK, MODEL, WARM, STEPS = Checksums(lengths=LENGTHS, size=SHOWN), "blank:2x64x4", 160, 60
CLONED: dict[str, Any] = {"problems": 64, "optimizer.lr": 2e-3}
IMITATES: dict[str, Any] = {"problems": 64, "optimizer.lr": 3e-4, "optimizer.warmup": 0.5}


def experiment(
    seeds: Sequence[int], arm: Mapping[str, Any] | None = None, baseline: Mapping[str, Any] | None = None
) -> list[Pair]:
    """Valid strings by length, after as many steps."""
    arms = {
        "online": variant("rl-perspective-llm", {**IMITATES, **(arm or {})}),
        "cloned": variant("sft", {**CLONED, **(baseline or {})}),
    }
    with started(TASK, steps=WARM, start=MODEL, changes=CLONED) as first:
        jobs = [Training(name, m, TASK, s, STEPS, first.folder) for s in seeds for name, m in arms.items()]
        found = by_label([job.label for job in jobs], spread(valid, jobs))
        before = [untrained(arms["cloned"], task, start=first.folder, problems=TESTED) for task in tested()]
    own, other = ({name: [f[name] for f in found[label]] for name in found[label][0]} for label in arms)
    start = {f"valid at {h}": [b.pass_at(1)] * len(seeds) for h, b in zip(LENGTHS, before)}
    steps = [float(STEPS)] * len(seeds)
    return pairs(seeds, own, other, start=start, budgets={"steps": (steps, steps)})


def tested() -> list[Checksums]:
    """The task at each length."""
    return [Checksums(lengths=(length,)) for length in LENGTHS]


def valid(job: Training) -> dict[str, float]:
    """Train, and count valid strings of each length, on prompts that nobody trained on."""
    from etude.evaluation.language import evaluate_split
    from etude.experiments.arms import START

    policy = trained(job)[0].policy
    looked = (evaluate_split(policy, task, "test", problems=TESTED, samples=1, seed=START) for task in tested())
    return {f"valid at {h}": float(found.correct.mean()) for h, found in zip(LENGTHS, looked)}
