"""What a weak reward model is worth to whoever follows it: its own score and the gold score along seven ways of PPO.

    python benchmarks/reward_hacking.py                       # train what is missing, then print the table
    python benchmarks/reward_hacking.py --ways PPO "PPO-max" --seeds 2 --workers 1

All begin at the same writer of `digest` and are paid by the same reward model of 500 pairs, which does not know that
words said again are worth nothing; each has its paper's settings but for rates, sizes and the penalties that are said,
and nothing was tuned here. Runs are kept below runs/beds, where what was stopped goes on; numbers go to
records/reward_hacking.json, the picture to docs/images/reward-hacking.png.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.core.registry import get_method
from etude.evaluation.intervals import Band, Interval
from etude.evaluation.plots import draw_panels
from etude.evaluation.verdicts import paired_interval
from etude.rewards.model import RewardModel
from etude.runs.beds import CONFIRMING, Bed, load_bed, model_of, runs_of, scores_of
from etude.runs.frontiers import frontiers
from etude.runs.jobs import Job, Workers, run_jobs
from etude.runtime.environment import record

HERE = Path(__file__).resolve().parent
RECORD = HERE / "records" / "reward_hacking.json"
PICTURE = HERE.parent / "docs" / "images" / "reward-hacking.png"
BED, STEPS, EVERY, PAIRS, SAMPLES, LEVEL = "preference/digest-soup", 150, 10, 500, 4, 0.95
PAID = "reward/reward-model"
COMMON = {"problems": 64, "experience.size": 2, "optimizer.lr": 1e-3, "rewards.reward-model.model": "{proxy}"}
OWN_CRITIC = {"critic.model": "{proxy}", "critic.learning.optimizer.lr": 3e-3}
PENALTY = "rewards.kl-penalty.coefficient"


class Way(NamedTuple):
    """A way of PPO."""

    name: str
    method: str
    about: str
    fields: Mapping[str, Any]

    @property
    def weight(self) -> float:
        """Of the reward model's score in what `reward/reward-model` says."""
        method: Any = get_method(self.method)
        return next(float(part.weight) for part in method.rewards if isinstance(part, RewardModel))


WAYS = (
    Way("PPO", "ppo-rlhf", "the score alone", {**COMMON, PENALTY: 0.0}),
    Way("PPO, penalised", "ppo-rlhf", "0.1 a nat of divergence besides", {**COMMON, PENALTY: 0.1}),
    Way("PPO-max", "ppo-max", "scores normalised and clipped, a critic of its own", {**COMMON, **OWN_CRITIC}),
    Way("RTO", "rto", "every token is paid what DPO of the same pairs says of it",
        {**COMMON, **OWN_CRITIC, "rewards.dpo-token-reward.whose.model": "{dpo}"}),
    Way("CGPO", "cgpo", "a judge of words said again is a constraint",
        {**COMMON, "problems": 32, "experience.size": 4,
         "rewards.constrained-returns.tasks.0.panel": "no-repeats",
         "rewards.constrained-returns.tasks.0.panel.no-repeats.size": 1,
         "rewards.constrained-returns.tasks.0.panel.no-repeats.unit": "character"}),
    Way("PF-PPO", "pf-ppo", "learns from the best and one other of five",
        {"problems": 32, "optimizer.lr": 1e-3, "rewards.reward-model.model": "{proxy}", PENALTY: 0.0}),
    Way("SALSA", "salsa", "0.1 a nat from the average of two starts besides",
        {**COMMON, "reference.models": "{second}", PENALTY: 0.1}),
)  # fmt: skip


class Found(NamedTuple):
    """Runs of a way: [seeds, looks] gold and proxy at steps `at`, [seeds] divergence from the start at the end."""

    at: NDArray[np.float64]
    gold: NDArray[np.float64]
    proxy: NDArray[np.float64]
    kl: NDArray[np.float64]


def bed_of() -> Bed:
    """The bed, with a reward model and a policy of DPO from 500 pairs."""
    bed = load_bed(BED)
    proxy = dataclasses.replace(bed.made["proxy"], steps=60, set={**bed.made["proxy"].set, "task.size": PAIRS})
    dpo = dataclasses.replace(proxy, method="dpo", set={**proxy.set, "optimizer.lr": 5e-4})
    test = dataclasses.replace(bed.test, every=EVERY)
    return dataclasses.replace(bed, steps=STEPS, test=test, made={**bed.made, "proxy": proxy, "dpo": dpo})


def scored(job: Job, way: Way, looks: Sequence[int]) -> list[float]:
    """What the reward model says of the completions of the steps before each look; before the first, of the first."""
    lines = [json.loads(line) for line in (job.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    paid = np.array([line.get(PAID, np.nan) for line in lines]) / way.weight  # none in a step of imitation between
    first = paid[np.isfinite(paid)][0]
    return [float(first), *(float(np.nanmean(paid[a:b])) for a, b in pairwise(looks))]


def measured(way: Way, seeds: int, workers: Workers) -> Found:
    """What came of a way."""
    bed = bed_of()
    jobs = runs_of(bed, way.method, seeds, way.fields)
    run_jobs(jobs, workers)
    scores = scores_of(bed, jobs)
    ends = frontiers(bed.goal, [jobs], model_of(bed, "start"), bed.metric, bed.split, bed.test.problems, SAMPLES)
    proxy = np.array([scored(job, way, bed.looks) for job in jobs])
    return Found(scores.at, scores.curves, proxy, np.array([each.reach for each in ends]))


def interval(values: NDArray[np.float64]) -> Interval:
    """A mean over seeds."""
    return paired_interval(values, 0.0, level=LEVEL)


def table(found: Mapping[str, Found]) -> str:
    """What each way came to, as Markdown; a fall whose interval is above 0 in bold."""
    head = ["way", "what else it has", "proxy, first", "proxy, last", "gold, best", "gold, last", "fell by", "KL"]
    lines = [head, ["---"] * len(head)]
    for way in WAYS:
        if way.name in found:
            each = found[way.name]
            best = int(each.gold.mean(0).argmax())
            fell = interval(each.gold[:, best] - each.gold[:, -1])
            ends = [each.proxy[:, 0], each.proxy[:, -1], each.gold[:, best], each.gold[:, -1]]
            mark = "**" if fell.low > 0 else ""
            means = [f"{x.mean():.2f}" for x in ends[:2]] + [shown(interval(x)) for x in ends[2:]]
            lines.append([way.name, way.about, *means, f"{mark}{shown(fell)}{mark}", f"{each.kl.mean():.1f}"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def shown(value: Interval) -> str:
    """A mean and its interval."""
    return f"{value.value:.2f} ({value.low:.2f} to {value.high:.2f})"


def draw(found: Mapping[str, Found]) -> Path:
    """What the reward model says along each way, and the gold score; bands are the range over seeds."""
    lines = {"reward model": {n: x.proxy for n, x in found.items()}, "gold": {n: x.gold for n, x in found.items()}}
    panels = {
        title: {name: Band(found[name].at, line.mean(0), line.min(0), line.max(0)) for name, line in each.items()}
        for title, each in lines.items()
    }
    return draw_panels(panels, PICTURE, x_label="training steps", y_label="score")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", default=[way.name for way in WAYS], choices=[way.name for way in WAYS])
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--page", action="store_true", help="only print the table and draw the picture of the record")
    asked = parser.parse_args()
    if asked.page:
        known = json.loads(RECORD.read_text(encoding="utf-8"))["ways"]
        found = {name: Found(*map(np.array, (x["at"], x["gold"], x["proxy"], x["kl"]))) for name, x in known.items()}
        print(f"{table(found)}\n\n{draw(found)}")
        return
    here = record(CONFIRMING)
    with Workers(asked.workers) as workers:
        found = {way.name: measured(way, asked.seeds, workers) for way in WAYS if way.name in asked.ways}
    if len(found) == len(WAYS):
        ways = {name: {k: np.round(v, 4).tolist() for k, v in each._asdict().items()} for name, each in found.items()}
        told = {"seeds": asked.seeds, "processor": here["processor"], "commit": here["commit"], "ways": ways}
        RECORD.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    print(table(found))


if __name__ == "__main__":
    main()
