"""Who gets the credit in games of several turns: four ways on the same three beds, with as many games.

    python benchmarks/credit_over_turns.py                    # train what is missing, then print the table
    python benchmarks/credit_over_turns.py --seeds 3 --beds keys turns

Each plays 128 games in each step of the bed's budget, from the bed's start, with its paper's settings but for that;
nothing was tuned. Runs are kept below runs/beds, where what was stopped goes on; numbers go to
records/credit_over_turns.json. A cell is the mean over seeds of the bed's metric with its 95 % interval (Student's t):
along the run (area), and after it (end).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.evaluation.verdicts import paired_interval
from etude.runs.beds import CONFIRMING, load_bed, runs_of, scores_of
from etude.runs.jobs import Job, run_jobs
from etude.runtime.environment import record

RECORD = Path(__file__).with_name("records") / "credit_over_turns.json"
BEDS = ("keys", "milestones", "turns")
GROUPS = {"problems": 16, "experience.size": 8}
ALONE = {"problems": 128, "experience.size": 1}
LEVEL = 0.95


class Way(NamedTuple):
    """A way to give credit, and who does it."""

    credit: str
    method: str
    fields: Mapping[str, Any]


WAYS = (
    Way("the whole game's for each token", "grpo", GROUPS),
    Way("that, weighed by how sure each turn was", "empg", GROUPS),
    Way("rewards of turns, by a value of each token", "ppo", ALONE),
    Way("a critic of whole utterances", "archer", {**ALONE, "advantages.warmup": 5}),
)


def trained(beds: Sequence[str], seeds: int, workers: int | None) -> dict[str, dict[str, list[Job]]]:
    """Runs by bed and method, those that are missing trained."""
    jobs = {
        bed: {way.method: runs_of(load_bed(f"language/{bed}"), way.method, seeds, way.fields) for way in WAYS}
        for bed in beds
    }
    run_jobs([job for by_method in jobs.values() for each in by_method.values() for job in each], workers)
    return jobs


def interval(values: NDArray[np.float64]) -> list[float]:
    """Mean, low, high."""
    found = paired_interval(values, 0.0, level=LEVEL)
    return [round(x, 4) for x in (found.value, found.low, found.high)]


def measured(jobs: Mapping[str, Mapping[str, Sequence[Job]]]) -> dict[str, Any]:
    """What runs came to, by bed and method."""
    found: dict[str, Any] = {}
    for bed, by_method in jobs.items():
        recipe = load_bed(f"language/{bed}")
        scores = {method: scores_of(recipe, each) for method, each in by_method.items()}
        first = next(iter(scores.values()))
        found[bed] = {
            "metric": recipe.metric, "steps": recipe.steps, "start": round(float(first.start.mean()), 4),
            **{m: {"area": interval(s.area), "end": interval(s.end),
                   "beside grpo": interval(s.area - first.area)} for m, s in scores.items()},
        }  # fmt: skip
    return found


def table(found: Mapping[str, Any]) -> str:
    """The record as Markdown, the best area of each bed in bold."""

    def said(x: Sequence[float]) -> str:
        return f"{x[0]:.3f} ({x[1]:.3f} to {x[2]:.3f})"

    beds = found["beds"]
    head = ["credit", "method", *(f"`{bed}`: area, end (start {beds[bed]['start']:.3f})" for bed in beds)]
    lines = [head, ["---"] * len(head)]
    best = {bed: max(WAYS, key=lambda way: beds[bed][way.method]["area"][0]).method for bed in beds}
    for way in WAYS:
        cells = []
        for bed in beds:
            area, end = (said(beds[bed][way.method][k]) for k in ("area", "end"))
            cells.append(f"{f'**{area}**' if best[bed] == way.method else area}, {end}")
        lines.append([way.credit, f"`{way.method}`", *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beds", nargs="+", default=BEDS)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--workers", type=int, default=None)
    asked = parser.parse_args()
    here = record(CONFIRMING)
    found = {
        "seeds": asked.seeds, "processor": here["processor"], "commit": here["commit"],
        "beds": measured(trained(asked.beds, asked.seeds, asked.workers)),
    }  # fmt: skip
    RECORD.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(table(found))


if __name__ == "__main__":
    main()
