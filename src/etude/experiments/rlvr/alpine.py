"""ALPINE's claim: by a one-layer decoder and by the two-matrix model, both trained as `etude train alpine` does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from etude.evaluation.graph_probes import gap, probe
from etude.evaluation.pairs import Pair
from etude.experiments.arms import pairs, variant
from etude.experiments.cells import Cell, by_label, spread, trained
from etude.tasks.language.paths import PathData, Paths, data

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy

NODES, DENSITY, STEPS = 50, 0.1, 250
RATE = 0.1
"""Of the two matrices: one that suits tables."""
DECODER, TABLES = "decoder", "two matrices"
Read = dict[str, float]
"""What a model came to: accuracy on test pairs of degree 0 ('seen') and of higher degrees ('composed'), gaps of its
matrices in nats ('edges', 'observed', 'reachable'), and the decoder's 'attention' on the target."""


def work(job: tuple[str, int]) -> Read:
    """One model on the graph of one seed."""
    kind, seed = job
    return two_matrices(seed) if kind == TABLES else decoder(seed)


def decoder(seed: int) -> Read:
    """One layer, one head, width 120."""
    task = graph_task(seed)
    policy, made = trained(Cell(DECODER, variant("alpine"), task, seed, STEPS, "blank:1x120"))[0].policy, data(task)
    found = probe(policy, made, made.paths[: len(made.train)])
    gaps = {"edges": found.edges, "observed": found.observed, "reachable": found.reachable}
    return {**accuracies(policy, task), **gaps, "attention": found.attention[0]}


def two_matrices(seed: int) -> Read:
    """The two matrices themselves."""
    task = graph_task(seed)
    cell = Cell(TABLES, variant("alpine", {"optimizer.lr": RATE}), task, seed, STEPS, f"two-matrices:{NODES}")
    policy = trained(cell)[0].policy
    tables = policy.model.model
    return {**accuracies(policy, task), **gaps_of(data(task), tables.w_m.detach(), tables.w_v.detach())}


def gaps_of(made: PathData, w_m: Tensor, w_v: Tensor) -> Read:
    """Of W_M: edges against none. Of W_V: seen on the way to a target against not, reachable but unseen against not."""
    a, r, seen = (torch.from_numpy(x.copy()) for x in (made.edges, made.reaches.T, made.seen))
    observed, reachable = gap(w_v, seen, ~seen), gap(w_v, r & ~seen, ~r & ~seen)
    return {"edges": gap(w_m, a, ~a), "observed": observed, "reachable": reachable}


def accuracies(policy: LanguagePolicy, task: Paths) -> Read:
    """Of greedy answers to every test pair: of those of degree 0, and of the others."""
    from etude.evaluation.language import evaluate_split
    from etude.experience.groups import Groups

    looked = evaluate_split(
        policy, task, "test", problems=len(data(task).test), samples=1, experience=Groups(temperature=0.01)
    )  # fmt: skip
    right: dict[bool, list[bool]] = defaultdict(list)
    for (episode,), (correct,) in zip(looked.episodes, looked.correct):
        right[episode.problem.level == "degree0"].append(bool(correct))
    return {"seen": fmean(right[True]), "composed": fmean(right[False])}


def graph_task(seed: int) -> Paths:
    """The graph of a seed."""
    return Paths(nodes=NODES, density=DENSITY, seed=seed)


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """Both models on the graph of each seed: pairs seen against pairs to be composed, W_V seen against reachable."""
    jobs = [(kind, seed) for kind in (DECODER, TABLES) for seed in seeds]
    reads = by_label([kind for kind, _ in jobs], spread(work, jobs))
    arm: dict[str, list[float]] = {}
    baseline: dict[str, list[float]] = {}
    for kind, found in reads.items():
        every = {what: [read[what] for read in found] for what in found[0]}
        arm |= {
            f"{kind}: accuracy, seen": every["seen"], f"{kind}: W_M on edges": every["edges"],
            f"{kind}: accuracy, seen less composed": [a - b for a, b in zip(every["seen"], every["composed"])],
            f"{kind}: W_V on seen nodes": every["observed"],
        }  # fmt: skip
        baseline[f"{kind}: W_V on seen nodes"] = every["reachable"]
    arm[f"{DECODER}: attention on the target"] = [read["attention"] for read in reads[DECODER]]
    return pairs(seeds, arm, baseline)
