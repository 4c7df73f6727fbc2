"""ALPINE's claim: by the two-matrix model, and by a one-layer decoder that the ordinary loop trains."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from etude.core.registry import get_method
from etude.evaluation.graph_probes import Probe, gap, probe
from etude.experiments.arms import SEEDS, Question, findings, spread
from etude.experiments.rlvr.path_models import Graphs, fit_two_matrices, greedy_accuracy, two_matrix_table
from etude.tasks.language.paths import PathData, Paths, data

NODES, DENSITY = 50, 0.1
GRAPHS = 10
"""Graphs of the two-matrix model."""
DESCENT, RATE = 500, 10.0
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


def two_matrices(seeds: list[int]) -> list[Read]:
    """Gradient descent on the paths of a few graphs."""
    torch.set_num_threads(1)
    sets = [data(graph_task(s)) for s in seeds]
    graphs = Graphs.of(sets)
    w_m, w_v = fit_two_matrices(graphs.counts.float(), DESCENT, RATE)
    table = two_matrix_table(w_m, w_v)
    seen, composed = (
        greedy_accuracy(table, graphs.edges, [[p for p in d.test if (d.degree[p] == 0) == zero] for d in sets])
        for zero in (True, False)
    )
    return [Read(a, b, *gaps(d, m, v)) for a, b, d, m, v in zip(seen, composed, sets, w_m, w_v)]


def gaps(made: PathData, w_m: Tensor, w_v: Tensor) -> tuple[float, float, float]:
    """Of W_M: edges against none. Of W_V: seen on the way to a target against not, reachable but unseen against not."""
    a, r, seen = (torch.from_numpy(x.copy()) for x in (made.edges, made.reaches.T, made.seen))
    return gap(w_m, a, ~a), gap(w_v, seen, ~seen), gap(w_v, r & ~seen, ~r & ~seen)


def decoder(seed: int) -> Read:
    """One layer, one head, width 120, trained by `alpine` on one graph; greedy answers to every test pair."""
    from etude.evaluation.language import evaluate_split
    from etude.experience.groups import Groups
    from etude.loops.language import LanguageLoop
    from etude.policies.language import LanguagePolicy

    torch.set_num_threads(1)
    method, task = get_method("alpine"), graph_task(seed)
    assert method.claim is not None
    policy = LanguagePolicy.load(method.claim.model, device="cpu")
    loop = LanguageLoop(method, task, policy, seed=seed, steps=method.claim.steps)
    for _ in range(loop.steps):
        loop.step()
    made = data(task)
    looked = evaluate_split(
        policy, task, "test", problems=len(made.test), samples=1, experience=Groups(temperature=0.01)
    )  # fmt: skip
    right: dict[bool, list[bool]] = defaultdict(list)
    for (episode,), (correct,) in zip(looked.episodes, looked.correct):
        right[episode.problem.level == "degree0"].append(bool(correct))
    found: Probe = probe(policy, made, made.paths[: len(made.train)])
    return Read(
        fmean(right[True]), fmean(right[False]), found.edges, found.observed, found.reachable, found.attention[0]
    )  # fmt: skip


def graph_task(seed: int) -> Paths:
    """The claim's graph of a seed."""
    return Paths(nodes=NODES, density=DENSITY, seed=seed)


def work(job: tuple[str, list[int]]) -> list[Read]:
    """One job of the experiment: a few two-matrix models, or one decoder."""
    kind, seeds = job
    return two_matrices(seeds) if kind == "two matrices" else [decoder(seeds[0])]


def experiment() -> dict[str, Any]:
    """Both models, each on graphs of fresh seeds."""
    seeds = [SEEDS + k for k in range(GRAPHS)]
    jobs = [("decoder", [s]) for s in seeds[:DECODERS]] + [("two matrices", seeds)]
    *decoders, matrices = spread(work, jobs)
    reads = {"decoder": [r for (r,) in decoders], "two matrices": matrices}
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
