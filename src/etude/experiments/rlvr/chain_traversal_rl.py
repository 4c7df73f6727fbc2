"""The claim about outcome rewards on chain traversal, with linear attention that can be read.

Three experiments of arXiv:2601.15158: does traversal emerge, does it carry over to longer chains, and what if training
has only the hardest problems. The model is that of `--model linear-attention:N`, its problems drawn and walked as
tensors: 4,350 steps of 4,096 walks are 18 million completions, which take minutes here and hours of a language run, as
each is an episode of its own there. Sizes are the catalogue's; batches are 4,096 problems where the published code has
200,000, and so are its temperature for linear attention, 1/5, and its rate.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from etude.experiments.arms import SEEDS, Question, findings
from etude.experiments.cells import recorded, spread
from etude.experiments.rlvr.chain_model import ChainModel, accuracy, train

BATCH, RATE, TEMPERATURE = 4096, 1e-2, 0.2
TESTED = 2000
RUNS = 3


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


SETTINGS = (
    Run("emergence", 4, 8, (0, 1, 2), 200, (4,)),
    Run("longer chains", 4, 16, (0, 1, 2), 350, (4, 6, 8)),
    Run("hardest only", 5, 10, (0,), 450, (5,)),
    Run("all starts", 5, 10, (0, 1, 2, 3), 450, (5,)),
)


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


def experiment() -> dict[str, Any]:
    """All runs on fresh seeds."""
    jobs = [Run(**{**vars(s), "seed": SEEDS + k}) for s in SETTINGS for k in range(RUNS)]
    done = spread(do, jobs)
    found: dict[str, list[list[list[float]]]] = {}
    for job, result in zip(jobs, done):
        found.setdefault(job.name, []).append(result)

    def every(name: str, length: int, which: int) -> list[float]:
        return [run[length][which] for run in found[name]]

    line = [0.95] * RUNS
    asked = [
        Question("traversal accuracy, m = 4", {"traversal": every("emergence", 0, 1), "0.95": line}),
        *(
            Question(f"trained with m = 4, traversal accuracy with m = {m}", {
                "traversal": every("longer chains", i, 1), "0.95": line})
            for i, m in ((1, 6), (2, 8))
        ),
        Question("m = 5, trained on the hardest start only: accuracy above chance, below a tenth", {
            "hardest only": every("hardest only", 0, 0), "0.6": [0.6] * RUNS}, "lower"),
        Question("m = 5, accuracy on the hardest start", {
            "all starts": every("all starts", 0, 0), "hardest only": every("hardest only", 0, 0)}, margin=0.2),
    ]  # fmt: skip
    return findings(asked, task="chains", model="linear attention", steps=max(s.steps for s in SETTINGS), seeds=RUNS)
