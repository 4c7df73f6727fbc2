"""ALPINE's claim: by the two-matrix model and by a one-layer decoder, both trained as `etude train alpine` does."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from etude.core.registry import get_method
from etude.evaluation.graph_probes import Probe, gap, probe
from etude.experiments.arms import SEEDS, Question, findings, variant
from etude.experiments.cells import Cell, by_label, spread, trained
from etude.tasks.language.paths import PathData, Paths, data

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy

NODES, DENSITY = 50, 0.1
GRAPHS = 5
"""Graphs of the two-matrix model."""
RATE = 0.1
DECODERS = 3
ABOUT = 0.85
"""What "about 90 %" means at least."""
LOWER = 0.1
"""What "much lower" means at least."""


@dataclass(frozen=True)
class Read:
    """What one model came to: accuracy on test pairs of degree 0 and of higher degrees, gaps of its matrices."""

    seen: float
    composed: float
    edges: float
    observed: float
    reachable: float
    attention: float = float("nan")


def two_matrices(seed: int) -> Read:
    """The two matrices themselves, trained by `alpine` on one graph with a rate that suits tables."""
    method = variant("alpine", {"optimizer.lr": RATE})
    cell = Cell("two matrices", method, graph_task(seed), seed, steps(), f"two-matrices:{NODES}")
    policy, made = trained(cell)[0].policy, data(graph_task(seed))
    tables = policy.model.model
    return Read(*accuracies(policy, graph_task(seed)), *gaps(made, tables.w_m.detach(), tables.w_v.detach()))


def gaps(made: PathData, w_m: Tensor, w_v: Tensor) -> tuple[float, float, float]:
    """Of W_M: edges against none. Of W_V: seen on the way to a target against not, reachable but unseen against not."""
    a, r, seen = (torch.from_numpy(x.copy()) for x in (made.edges, made.reaches.T, made.seen))
    return gap(w_m, a, ~a), gap(w_v, seen, ~seen), gap(w_v, r & ~seen, ~r & ~seen)


def decoder(seed: int) -> Read:
    """One layer, one head, width 120, trained by `alpine` on one graph."""
    task, claim = graph_task(seed), get_method("alpine").claim
    assert claim is not None
    policy = trained(Cell("decoder", variant("alpine"), task, seed, steps(), claim.model))[0].policy
    made = data(task)
    found: Probe = probe(policy, made, made.paths[: len(made.train)])
    return Read(*accuracies(policy, task), found.edges, found.observed, found.reachable, found.attention[0])


def accuracies(policy: LanguagePolicy, task: Paths) -> tuple[float, float]:
    """Of greedy answers to every test pair: of those of degree 0, and of the others."""
    from etude.evaluation.language import evaluate_split
    from etude.experience.groups import Groups

    looked = evaluate_split(
        policy, task, "test", problems=len(data(task).test), samples=1, experience=Groups(temperature=0.01)
    )  # fmt: skip
    right: dict[bool, list[bool]] = defaultdict(list)
    for (episode,), (correct,) in zip(looked.episodes, looked.correct):
        right[episode.problem.level == "degree0"].append(bool(correct))
    return fmean(right[True]), fmean(right[False])


def steps() -> int:
    """As many as the claim says, for both models."""
    claim = get_method("alpine").claim
    assert claim is not None
    return claim.steps


def graph_task(seed: int) -> Paths:
    """The claim's graph of a seed."""
    return Paths(nodes=NODES, density=DENSITY, seed=seed)


def work(job: tuple[str, int]) -> Read:
    """One model on the graph of one seed."""
    kind, seed = job
    return two_matrices(seed) if kind == "two matrices" else decoder(seed)


def experiment() -> dict[str, Any]:
    """Both models, each on graphs of fresh seeds."""
    seeds = [SEEDS + k for k in range(GRAPHS)]
    jobs = [("decoder", s) for s in seeds[:DECODERS]] + [("two matrices", s) for s in seeds]
    reads = by_label([kind for kind, _ in jobs], spread(work, jobs))
    asked = [q for name, found in reads.items() for q in questions(name, found)]
    attention = [r.attention for r in reads["decoder"]]
    asked.append(
        Question("decoder: attention on the target", {"attention": attention, "half": [0.5] * len(attention)})
    )  # fmt: skip
    claim = get_method("alpine").claim
    assert claim is not None
    return findings(asked, task="paths", model=claim.model, steps=claim.steps, seeds=DECODERS, graphs=GRAPHS)


def questions(name: str, found: list[Read]) -> list[Question]:
    """Accuracy by degree, and what the two matrices separate."""

    def every(what: str) -> list[float]:
        return [getattr(r, what) for r in found]

    return [
        Question(f"{name}: accuracy on pairs of degree 0, about 90 % or more", {
            "degree 0": every("seen"), f"{ABOUT}": [ABOUT] * len(found)}),
        Question(f"{name}: accuracy by degree", {
            "degree 0": every("seen"), "higher": every("composed")}, margin=LOWER),
        Question(f"{name}: W_M on edges against pairs that are none, in nats", {
            "gap": every("edges"), "0": [0.0] * len(found)}),
        Question(f"{name}: W_V, gap of observed nodes against gap of reachable nodes that were not observed", {
            "observed": every("observed"), "reachable": every("reachable")}),
    ]  # fmt: skip
