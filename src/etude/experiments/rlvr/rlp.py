"""The claim of RLP: text in which numbers are computed and hardly ever shown, by a policy that has seen some thoughts.

All arms begin from one policy and read the same texts. What goes on with pretraining learns what comes next from as
many texts as RLP reads (equal tokens), or from as many as cost what RLP's thoughts do (equal compute). Then all of them
take the same steps of GRPO.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from etude.core.kinds import TokenMethod
from etude.evaluation.pairs import Pair
from etude.experiments.arms import START, pairs, started, variant
from etude.experiments.cells import by_label, spread
from etude.experiments.watched import Job, Run, run, scores
from etude.tasks.language.streams import Streams

if TYPE_CHECKING:
    from etude.loops.language import LanguageLoop

TASK, STEPS, AFTER = Streams(), 60, 20
TEXT, SHOWN = TASK.replace(scratch=0.0), TASK.replace(scratch=0.5)
"""The texts without thoughts, and those that all arms have seen, half of them with one."""
WARM = 400
"""Steps on text before all arms. With a thought in one text of ten answers were right by chance alone after 200."""
PROBLEMS, SIZE, LIMIT = 16, 8, 16
"""Texts a step, thoughts at each, and tokens of one at most."""
LENGTH = 20
"""Tokens of a text, about."""
MORE = 1 + SIZE * LIMIT // LENGTH
"""Texts that cost what RLP spends on one: n l + its own tokens, n thoughts of l tokens."""
FORESIGHT, SOLVED = "log-likelihood", "accuracy after GRPO"
EQUAL, COSTLY = "equal tokens", "equal compute"
COMPARED = {
    f"{FORESIGHT} at {EQUAL}": (FORESIGHT, "rlp", EQUAL),
    f"{FORESIGHT} at {COSTLY}": (FORESIGHT, "rlp", COSTLY),
    f"{SOLVED} at {EQUAL}": (SOLVED, "rlp", EQUAL),
    f"{SOLVED} at {COSTLY}": (SOLVED, "rlp", COSTLY),
    f"{FORESIGHT} against the start": (FORESIGHT, "rlp", "start"),
    "information gain against the start": ("gain", "rlp", "start"),
}
"""By measure: which score, of which arm, against which."""


def arms() -> dict[str, tuple[TokenMethod, Streams]]:
    """RLP, and both ways to go on with pretraining."""
    changes = {"problems": PROBLEMS, "experience.size": SIZE, "experience.max_tokens": LIMIT, "optimizer.lr": 2e-4}
    return {
        "rlp": (variant("rlp", changes), TASK),
        EQUAL: (variant("sft", {"problems": PROBLEMS, "optimizer.lr": 2e-4}), TEXT),
        COSTLY: (variant("sft", {"problems": PROBLEMS * MORE, "optimizer.lr": 2e-4}), TEXT),
    }


def figures(loop: LanguageLoop) -> Mapping[str, float]:
    """How well what comes next is foreseen: with a thought or without, whichever is better."""
    from etude.evaluation.foresight import foresight

    found = foresight(loop.policy, TASK, problems=200, samples=4, seed=START)
    return {FORESIGHT: max(found.with_thought, found.without), "gain": found.gain}


def _both(job: Job) -> Run:
    """An arm, then the same steps of GRPO as for all."""
    with tempfile.TemporaryDirectory() as folder:
        found = run(replace(job, keep=folder))
        rlvr = variant("grpo", {"problems": PROBLEMS, "experience.size": SIZE, "optimizer.lr": 2e-4})
        last = run(Job(f"{job.label} then grpo", rlvr, TASK, job.seed, AFTER, folder))
    found.scores[SOLVED] = last.scores["pass@1"]
    return found


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """Three arms from the same start, each measured and then trained alike."""
    methods = arms()
    with started(SHOWN, steps=WARM, changes={"problems": 128, "optimizer.lr": 2e-3}) as first:
        jobs = [
            Job(name, method, task, seed, STEPS, first.folder, after=figures)
            for seed in seeds
            for name, (method, task) in methods.items()
        ]
        before = run(Job("start", methods["rlp"][0], TASK, START, 0, first.folder, after=figures))
        found = by_label([job.label for job in jobs], spread(_both, jobs))
    found["start"] = [before] * len(seeds)
    arm = {measure: scores(found[ours], name) for measure, (name, ours, _) in COMPARED.items()}
    baseline = {measure: scores(found[other], name) for measure, (name, _, other) in COMPARED.items()}
    start = {
        measure: scores(found["start"], "pass@1" if name == SOLVED else name)
        for measure, (name, _, other) in COMPARED.items()
        if other != "start"
    }
    texts = {"texts": (_texts(found["rlp"], SIZE), _texts(found[EQUAL], 1))}
    return pairs(seeds, arm, baseline, start=start, budgets=texts)


def _texts(found: Sequence[Run], size: int) -> list[float]:
    """How many texts each run read, `size` rows of each."""
    return [sum(m["rows"] for m in r.metrics) / size for r in found]
