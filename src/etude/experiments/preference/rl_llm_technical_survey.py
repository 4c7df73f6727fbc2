"""The claim of rl-llm-technical-survey: RLOO on a learned reward against DPO, from one start and the same pairs.

Proxy and gold of the same answers are read at the end, and of RLOO early on too; gaps are in deviations of the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from etude.evaluation.pairs import Pair
from etude.experiments.arms import START, Training, pairs, run, started, variant
from etude.experiments.cells import Cell, spread, trained
from etude.tasks.language.digest import Digest

TASK, MODEL, WARM, TAUGHT, STEPS, EARLY = Digest(), "blank:2x64x4", 1000, 250, 60, 15
RATE, PAIRS_RATE, SIZE, PROBLEMS, SAMPLES = 1e-3, 5e-4, 2, 400, 2
"""Rates of RLOO and the reward model, and of DPO; completions of a problem; problems and samples that are looked at."""


@dataclass(frozen=True)
class Watched(Cell):
    """A run whose answers a reward model reads at its end."""

    scorer: str = ""


@dataclass(frozen=True)
class Look:
    """What answers are worth, to the reward model and in truth, [N] each."""

    proxy: NDArray[np.float64]
    gold: NDArray[np.float64]

    def gap(self, start: Look) -> float:
        """Deviations of the start that the proxy rose by, less those that gold did."""
        return rise(self.proxy, start.proxy) - rise(self.gold, start.gold)


def rise(after: NDArray[np.float64], before: NDArray[np.float64]) -> float:
    """(mean after - mean before) / deviation before.

    >>> rise(np.array([4.0, 6.0]), np.array([1.0, 3.0]))
    3.0
    """
    return float((after.mean() - before.mean()) / before.std())


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """Gold and proxy at the end, and gaps."""
    with started(TASK, steps=WARM, start=MODEL) as first, TemporaryDirectory() as folder:
        scorer = str(Path(folder) / "scorer")
        taught = variant("reward-model", {"problems": 64, "optimizer.lr": RATE})
        run([Training("scorer", taught, TASK, 0, TAUGHT, first.folder, keep=scorer, problems=1)])
        found, before = looks(first.folder, scorer, seeds)
    return compared(seeds, found, before)


def looks(folder: str, scorer: str, seeds: Sequence[int]) -> tuple[dict[str, list[Look]], Look]:
    """Both arms at their ends and RLOO early on, by seed; and the start."""
    online = variant("rl-llm-technical-survey", {
        "problems": 64, "experience.size": SIZE, "optimizer.lr": RATE, "rewards.reward-model.model": scorer,
    })  # fmt: skip
    offline = variant("dpo", {"problems": 64, "optimizer.lr": PAIRS_RATE})
    arms = {"online": (online, STEPS), "early": (online, EARLY), "offline": (offline, STEPS)}
    cells = [Watched(n, m, TASK, s, steps, folder, scorer=scorer) for n, (m, steps) in arms.items() for s in seeds]
    cells.append(Watched("start", offline, TASK, START, 0, folder, scorer=scorer))
    *found, before = spread(seen, cells)
    size = len(seeds)
    return {name: found[k * size : (k + 1) * size] for k, name in enumerate(arms)}, before


def seen(cell: Watched) -> Look:
    """Train, and read answers to new problems, the same for all arms."""
    from etude.evaluation.language import evaluate_split
    from etude.policies.language import LanguagePolicy
    from etude.rewards.model import values

    policy = trained(cell)[0].policy
    looked = evaluate_split(policy, TASK, "test", problems=PROBLEMS, samples=SAMPLES, seed=START)
    proxy = values(LanguagePolicy.load(cell.scorer, device="cpu"), [e for row in looked.episodes for e in row])
    return Look(np.array(proxy), looked.rewards.ravel().astype(np.float64))


def compared(seeds: Sequence[int], found: dict[str, list[Look]], before: Look) -> list[Pair]:
    """Both arms by measure."""
    gold, proxy, gap = (
        {name: [read(look) for look in own] for name, own in found.items()}
        for read in (lambda x: float(x.gold.mean()), lambda x: float(x.proxy.mean()), lambda x: x.gap(before))
    )
    gained = [rise(look.proxy, before.proxy) for look in found["online"]]
    arm = {
        "gold": gold["online"], "gap, end against early": gap["online"], "proxy": proxy["online"],
        "proxy gained": gained, "gap, against DPO": gap["online"],
    }  # fmt: skip
    baseline = {
        "gold": gold["offline"], "gap, end against early": gap["early"], "proxy": proxy["offline"],
        "proxy gained": [0.0] * len(seeds), "gap, against DPO": gap["offline"],
    }  # fmt: skip
    steps = [float(STEPS)] * len(seeds)
    start = {"proxy": [float(before.proxy.mean())] * len(seeds)}
    return pairs(seeds, arm, baseline, start=start, budgets={"steps": (steps, steps)})
