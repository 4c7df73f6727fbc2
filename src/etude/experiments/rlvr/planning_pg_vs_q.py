"""Policy gradient against Q-learning on a free table f(target, current)[next], several graphs at a time.

After supervised learning on the training pairs' paths, the same table is trained by more of it, by policy gradient with
and without KL, and by Q-learning with process rewards (on and off policy) and with outcome rewards. Everything is as in
arXiv:2509.22613, sections 3 to 5, on the smaller graphs of the catalogue's tiny task: 30 nodes, 10 paths per pair.
Supervised learning stops early: its likeliest steps solve every training pair, and of its samples half fail.

The table is that of `--model path-table:N`, which `etude train` takes. One arm cannot be an ordinary run: off policy
another policy walks, and a token method learns from what its own policy said. The others could be, at the price of
48 runs of 1,500 steps; vectorised over graphs they take minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import torch
from torch import Tensor

from etude.evaluation.pairs import Pair
from etude.experiments.arms import pairs as paired
from etude.experiments.cells import recorded, spread
from etude.experiments.rlvr.path_models import (
    Graphs,
    Walks,
    distinct_paths,
    excess,
    greedy_accuracy,
    pairs_tensor,
    path_numbers,
    uniform,
    walk,
)
from etude.tasks.language.paths import Paths, data

Kind = Literal["sft", "pg", "q"]
NODES = 30
TAUGHT, STEPS, BATCH = 150, 1500, 128
RATE = 2e-2
LIMIT = 12
"""Most steps of a walk; the longest path of these graphs has fewer."""
LOOKS, PAIRS, SAMPLES = 6, 40, 100
COLD = 0.1
"""Temperature at which Q-values are read as a policy for the diversity of its paths."""


@dataclass(frozen=True)
class Arm:
    """One way to go on after supervised learning.

    Args:
        penalty: lambda, the weight of the divergence from the supervised table.
        process: rewards of single steps instead of whole paths.
        behaviour: who walks: the table itself, or the supervised table with a share of uniformly random steps.
    """

    name: str
    kind: Kind
    penalty: float = 0.0
    process: bool = True
    behaviour: Literal["own", "taught"] = "own"


ARMS = (
    Arm("supervised", "sft"),
    Arm("policy gradient", "pg"),
    Arm("policy gradient with KL", "pg", penalty=0.1),
    Arm("Q, process", "q"),
    Arm("Q, process, off policy", "q", behaviour="taught"),
    Arm("Q, outcome", "q", process=False),
)
EPSILON = 0.3
"""Share of uniformly random steps of the off-policy behaviour."""
SOLVED = 0.95
"""Share of right samples on training pairs from which on they are called solved."""


# Gradients of minus what is wanted, by the table [S, n, n, n]


def pg_gradient(table: Tensor, base: Tensor, walks: Walks, penalty: float) -> Tensor:
    """Of -1/B sum sum_m (R - lambda sg[log(pi / base)]) log pi(u_{m+1}), R = 1 for a valid path, else 0."""
    found, logp, held = torch.zeros_like(table).flatten(0, 2), _rows(table).log_softmax(-1), _rows(base).log_softmax(-1)
    for m in range(walks.going.shape[-1]):
        place, step = walks.places(m), walks.nodes[:, :, m + 1, None]
        said = logp[place]
        credit = walks.solved.to(table)[..., None]
        if penalty:
            credit = credit - penalty * (said.gather(-1, step) - held[place].gather(-1, step))
        credit = torch.where(walks.going[:, :, m, None], credit, 0.0)
        slope = said.exp() * credit
        slope.scatter_add_(-1, step, -credit)
        found.index_add_(0, place.flatten(), slope.flatten(0, 1))
    return (found / walks.target.shape[1]).view_as(table)


def q_gradient(table: Tensor, walks: Walks, process: bool) -> Tensor:
    """Of 1/B sum sum_m (f[u_{m+1}] - r(u, m) - sg[max f of the next row])^2, with 0 for the maximum at the target."""
    found, values = torch.zeros_like(table).flatten(), _rows(table)
    for m in range(walks.going.shape[-1]):
        entry = walks.places(m) * walks.size + walks.nodes[:, :, m + 1]
        wrong = values.flatten()[entry] - q_target(table, walks, m, process)
        found.index_add_(0, entry.flatten(), torch.where(walks.going[:, :, m], 2 * wrong, 0.0).flatten())
    return (found / walks.target.shape[1]).view_as(table)


def q_target(table: Tensor, walks: Walks, step: int, process: bool) -> Tensor:
    """r(u, m) + max f of the next row [S, B] of step number `step`; a walk that was cut off has no next row either."""
    there = walks.nodes[:, :, step + 1] == walks.target
    last = torch.tensor(step + 1 == walks.going.shape[-1])
    arrived = there.to(table)
    reward = arrived - (~walks.legal[:, :, step]).to(table) if process else arrived * walks.solved.to(table)
    seeds = torch.arange(len(walks.target))[:, None]
    row = (seeds * walks.size + walks.target) * walks.size + walks.nodes[:, :, step + 1]
    return reward + torch.where(there | last, 0.0, _rows(table)[row].amax(-1))


def _rows(table: Tensor) -> Tensor:
    return table.reshape(-1, table.shape[-1])


# Training


def teach(graphs: Graphs, table: Tensor, steps: int, look: Callable[[int, Tensor], None] | None = None) -> Tensor:
    """Supervised steps on all training paths: the table after them."""
    counts = graphs.counts.to(table) / graphs.counts.sum((1, 2, 3)).to(table)[:, None, None, None]
    return _descend(table, steps, lambda f: excess(f, counts), look)


def _descend(
    table: Tensor, steps: int, gradient: Callable[[Tensor], Tensor], look: Callable[[int, Tensor], None] | None = None
) -> Tensor:
    """Adam on given gradients."""
    weights = torch.nn.Parameter(table.clone())
    optimizer = torch.optim.Adam([weights], lr=RATE)
    for step in range(steps):
        weights.grad = gradient(weights.data)
        optimizer.step()
        if look is not None:
            look(step + 1, weights.data)
    return weights.data


def behaviour_table(base: Tensor, share: float) -> Tensor:
    """log of (1 - share) softmax(f) + share uniform."""
    return ((1 - share) * base.softmax(-1) + share / base.shape[-1]).log()


@dataclass
class Looked:
    """What was true at one moment, a number per graph."""

    train: list[float]
    test: list[float]
    sampled: list[float]
    diversity: list[float]


def look_at(graphs: Graphs, table: Tensor, cold: bool, seeds: Sequence[int]) -> Looked:
    """Greedy accuracy on training and test pairs; of 100 samples of a training pair those that are right, and how many
    distinct valid paths there are among them, both on pairs that have several paths.
    """
    train, test = ([getattr(d, split) for d in graphs.sets] for split in ("train", "test"))
    several = [[p for p in pairs if ways[p] > 1] for pairs, ways in zip(train, path_numbers(graphs.edges))]
    source, target = pairs_tensor(several, PAIRS)
    sources, targets = (x.repeat_interleave(SAMPLES, 1) for x in (source, target))
    walks = walk(table, graphs.edges, sources, targets, LIMIT, _generators(seeds), COLD if cold else 1.0)
    return Looked(
        greedy_accuracy(table, graphs.edges, train),
        greedy_accuracy(table, graphs.edges, test),
        walks.solved.double().mean(1).tolist(),
        [float(x) for x in distinct_paths(walks, SAMPLES).double().mean(1)],
    )


def _generators(seeds: Sequence[int]) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def go_on(graphs: Graphs, base: Tensor, arm: Arm, seeds: Sequence[int], steps: int = STEPS) -> list[Looked]:
    """Train on after supervised learning; what was true before and at LOOKS moments."""
    cold = arm.kind == "q"
    looks = [look_at(graphs, base, False, seeds)]

    def look(step: int, table: Tensor) -> None:
        if step % (steps // LOOKS) == 0:
            looks.append(look_at(graphs, table, cold, seeds))

    if arm.kind == "sft":
        teach(graphs, base, steps, look)
        return looks
    source, target = pairs_tensor([d.train for d in graphs.sets])
    counts = torch.tensor([len(d.train) for d in graphs.sets])[:, None]
    random = _generators(seeds)
    fixed = behaviour_table(base, EPSILON)

    def gradient(table: Tensor) -> Tensor:
        chosen = (uniform(random, BATCH) * counts).long()
        asked = source.gather(1, chosen), target.gather(1, chosen)
        walks = walk(table if arm.behaviour == "own" else fixed, graphs.edges, *asked, LIMIT, random)
        return pg_gradient(table, base, walks, arm.penalty) if arm.kind == "pg" else q_gradient(
            table, walks, arm.process
        )  # fmt: skip

    _descend(base, steps, gradient, look)
    return looks


# The claim


def run_arm(job: tuple[Arm, tuple[int, ...]]) -> list[Looked]:
    """One arm, on the graphs of these seeds."""
    arm, seeds = job
    matters = [asdict(arm), NODES, TAUGHT, STEPS, BATCH, RATE, LIMIT, LOOKS, PAIRS, SAMPLES, COLD, EPSILON, seeds]
    looks = recorded(arm.name, matters, lambda: [asdict(look) for look in _looks(arm, seeds)])
    return [Looked(**look) for look in looks]


def _looks(arm: Arm, seeds: Sequence[int]) -> list[Looked]:
    torch.set_num_threads(1)
    graphs = Graphs.of([data(Paths(nodes=NODES, demonstrations=10, seed=seed)) for seed in seeds])
    base = teach(graphs, torch.zeros_like(graphs.counts, dtype=torch.float32), TAUGHT)
    return go_on(graphs, base, arm, seeds)


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """Every arm from the same supervised table, on the graph of each seed."""
    looks = dict(zip((a.name for a in ARMS), spread(run_arm, [(arm, tuple(seeds)) for arm in ARMS])))
    more, gradient, held = (looks[k] for k in ("supervised", "policy gradient", "policy gradient with KL"))
    on, off, outcome = (looks[k] for k in ("Q, process", "Q, process, off policy", "Q, outcome"))
    taught, last = more[0], gradient[-1]
    solved = [
        next((x.diversity[i] for x in gradient if x.sampled[i] >= SOLVED), d) for i, d in enumerate(last.diversity)
    ]
    arm = {
        "test accuracy, Q": on[-1].test, "test accuracy, Q off policy": off[-1].test,
        "test accuracy, Q of outcomes": outcome[-1].test, "test accuracy, more supervised steps": more[-1].test,
        "training accuracy, policy gradient": last.sampled, "paths, policy gradient": last.diversity,
        "paths, with KL": held[-1].diversity, "paths, Q": on[-1].diversity,
    }  # fmt: skip
    baseline = {
        "test accuracy, Q": last.test, "test accuracy, Q off policy": last.test,
        "test accuracy, Q of outcomes": taught.test, "test accuracy, more supervised steps": taught.test,
        "training accuracy, policy gradient": last.sampled, "paths, policy gradient": solved,
        "paths, with KL": last.diversity, "paths, Q": last.diversity,
    }  # fmt: skip
    return paired(seeds, arm, baseline, start={"training accuracy, policy gradient": taught.sampled})
