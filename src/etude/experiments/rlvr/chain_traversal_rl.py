"""The claim about outcome rewards on chain traversal, with linear attention that can be read.

Two experiments of arXiv:2601.15158: does traversal carry over to chains that are longer than those of training, and
what if training has only the hardest problems. The model is that of `--model linear-attention:N`, its problems drawn
and walked as tensors: 2,500 steps of 1,024 walks for each seed are minutes here and hours of a language run, where each
walk is an episode of its own. Sizes are the catalogue's; batches are 1,024 problems where the published code has
200,000, and so are its temperature for linear attention, 1/5, and its rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

from etude.evaluation.pairs import Pair
from etude.experiments.arms import pairs
from etude.experiments.cells import by_label, recorded, spread
from etude.experiments.rlvr.chain_model import ChainModel, accuracy, train

BATCH, RATE, TEMPERATURE = 1024, 1e-2, 0.2
TESTED = 2000


@dataclass(frozen=True)
class Run:
    """A training run: chains of `length` among `vertices`, sources at `starts`; then tests on start 0 of `lengths`."""

    name: str
    length: int
    vertices: int
    starts: tuple[int, ...]
    steps: int
    lengths: tuple[int, ...]
    seed: int = 0


LONGER = Run("longer chains", 4, 16, (0, 1, 2), 700, (4, 6, 8))
HARDEST = Run("hardest only", 5, 10, (0,), 900, (5,))
ALL = Run("all starts", 5, 10, (0, 1, 2, 3), 900, (5,))


def do(run: Run) -> list[list[float]]:
    """Accuracy and traversal accuracy of greedy answers from the hardest start, for each tested length."""
    matters = [asdict(run), BATCH, RATE, TEMPERATURE, TESTED]
    return recorded(f"{run.name} {run.seed}", matters, lambda: _tested(run))


def _tested(run: Run) -> list[list[float]]:
    torch.set_num_threads(1)
    random = torch.Generator().manual_seed(run.seed)
    model = ChainModel.random(run.vertices, random, temperature=TEMPERATURE)
    train(
        model, length=run.length, vertices=run.vertices, starts=run.starts, steps=run.steps, batch=BATCH, rate=RATE,
        generator=random,
    )  # fmt: skip
    return [
        [*accuracy(model, length=m, vertices=run.vertices, starts=(0,), count=TESTED, generator=random)]
        for m in run.lengths
    ]


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """Traversal of longer chains than those of training, and all starts against the hardest alone."""
    jobs = [Run(**{**vars(run), "seed": seed}) for run in (LONGER, HARDEST, ALL) for seed in seeds]
    found = by_label([job.name for job in jobs], spread(do, jobs))
    hard, easier = ([tested[0][0] for tested in found[run.name]] for run in (HARDEST, ALL))
    traversed = {
        f"traversal, {m} vertices": [tested[i][1] for tested in found[LONGER.name]]
        for i, m in enumerate(LONGER.lengths)
    }
    arm = {**traversed, "accuracy, hardest starts only": hard, "accuracy, all starts": easier}
    return pairs(seeds, arm, {"accuracy, all starts": hard})
