"""What helps where hardly anything is solved: ten ways on the same beds, with as many generated tokens.

    python benchmarks/when_nothing_is_solved.py                     # train what is missing, then print the tables
    python benchmarks/when_nothing_is_solved.py --seeds 3 --beds sums-hard --workers 1

Each way has its paper's settings but for what a model of this size needs (`WAYS`), 32 problems of 8 completions a step
unless it searches; nothing was tuned. How many steps make the tokens is found out by three of them. Runs are kept below
runs/beds, where what was stopped goes on; numbers of a bed go to records/when_nothing_is_solved.json. A cell is the
mean over seeds of what is solved at the first try of 400 new problems, two tries each, with its 95 % interval
(Student's t).

Counted are the tokens that the policy generates, those thrown away too; and, in the second account, those of answers
that it learned from (`given_tokens`) or had in view (`shown_tokens`) as well.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.evaluation.verdicts import paired_interval
from etude.runs.beds import CONFIRMING, Bed, load_bed, runs_of
from etude.runs.comparing import evaluations
from etude.runs.jobs import Job, run_jobs
from etude.runtime.environment import record

RECORD = Path(__file__).with_name("records") / "when_nothing_is_solved.json"
BEDS = ("sums-hard", "countdown-hard")
TOKENS, MARGIN, LOOKS, TRIED = 240_000, 1.25, 6, 3
"""Generated tokens that ways are compared at; runs are longer by the margin, and looked at about so often."""
LEVEL = 0.95
ALIKE = {"problems": 32, "experience.size": 8}


class Way(NamedTuple):
    """A way, and what makes it one.

    Args:
        sampling: about which share of its steps sample at all.
    """

    method: str
    about: str
    fields: Mapping[str, Any] = ALIKE
    sampling: float = 1.0


WAYS = (
    Way("grpo", "groups alone"),
    Way("dapo", "groups that differ are sampled until there are enough"),
    Way("spo", "values of pieces, by going on from them",
        {"problems": 8, "experience.splitter.every": 2, "experience.rollouts": 4, "experience.temperature": 1.0}),
    Way("deepsearch", "a tree search for answers",
        {"problems": 12, "experience.width": 4, "experience.depth": 4, "experience.step_tokens": 3}),
    Way("critique-grpo", "attempts are mended with the answer in view"),
    Way("ghpo", "the beginning of the worked answer, where all fails", {**ALIKE, "second_look.shows.text": "{}"}),
    Way("sparkle", "goes on from the first blocks of the worked answer", ALIKE),
    Way("hpt", "imitates the worked answer, where all fails"),
    Way("relift", "keeps what fails, and imitates it in steps between", ALIKE, sampling=0.7),
    Way("sasr", "imitates, then by chance imitates or explores", {"problems": 32, "experience.size": 8}, sampling=0.4),
)  # fmt: skip


def jobs_of(bed: Bed, way: Way, seeds: int, steps: int, every: int) -> list[Job]:
    """Runs of so many steps, looked at every so many."""
    shorter = dataclasses.replace(bed, steps=steps, test=dataclasses.replace(bed.test, every=every))
    return runs_of(shorter, way.method, seeds, way.fields)


def steps_of(bed: Bed, way: Way, workers: int | None) -> int:
    """How many steps make the tokens, by what the first ones that sample take."""
    tried = math.ceil(TRIED / way.sampling) if way.sampling == 1 else 4 * TRIED
    (job,) = jobs_of(bed, way, 1, tried, tried)
    run_jobs([job], workers)
    taken = [line["sampled_tokens"] for line in lines_of(job) if line.get("sampled_tokens")]
    if not taken:
        raise SystemExit(f"{way.method} sampled nothing in {tried} steps: its share of WAYS is too large.")
    return math.ceil(MARGIN * TOKENS / (way.sampling * sum(taken) / len(taken)))


def lines_of(job: Job) -> list[dict[str, Any]]:
    """A run's metrics."""
    return [json.loads(line) for line in (job.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


class Curve(NamedTuple):
    """A run, [looks] each.

    Args:
        generated, answers: tokens until then.
        solved: share of the test set, at the first try.
    """

    generated: NDArray[np.float64]
    answers: NDArray[np.float64]
    solved: NDArray[np.float64]

    def at(self, tokens: float, counting: bool) -> float:
        """What is solved after so many tokens; at the end, if that came before."""
        return float(np.interp(tokens, self.generated + self.answers * counting, self.solved))


def curve(bed: Bed, job: Job, every: int) -> Curve:
    """What a run came to, and took."""
    lines = lines_of(job)
    looks = [*range(0, job.steps, every), job.steps]
    taken = np.array([[x.get("sampled_tokens", 0), x.get("given_tokens", 0) + x.get("shown_tokens", 0)] for x in lines])
    until = np.concatenate([np.zeros((1, 2)), taken.cumsum(0)])[looks]
    solved = np.array(evaluations([job], bed.metric, bed.split, looks)[0])
    return Curve(until[:, 0], until[:, 1], solved)


def interval(values: Sequence[float]) -> list[float]:
    """Mean, low, high."""
    found = paired_interval(np.array(values), 0.0, level=LEVEL)
    return [round(x, 4) for x in (found.value, found.low, found.high)]


def measured(bed: Bed, way: Way, seeds: int, workers: int | None) -> dict[str, Any]:
    """What a way came to on a bed."""
    steps = steps_of(bed, way, workers)
    every = max(1, steps // LOOKS)
    jobs = jobs_of(bed, way, seeds, steps, every)
    run_jobs(jobs, workers)
    curves = [curve(bed, job, every) for job in jobs]
    return {
        "steps": steps, "start": round(float(np.mean([c.solved[0] for c in curves])), 4),
        "generated": round(float(np.mean([c.generated[-1] for c in curves]))),
        "answers per 1,000": round(float(np.mean([1000 * c.answers[-1] / c.generated[-1] for c in curves])), 1),
        "generated tokens": interval([c.at(TOKENS, counting=False) for c in curves]),
        "all tokens": interval([c.at(TOKENS, counting=True) for c in curves]),
        "early": interval([c.at(TOKENS / 4, counting=False) for c in curves]),
    }  # fmt: skip


def table(beds: Mapping[str, Mapping[str, Any]]) -> str:
    """The record as Markdown, one table for each bed, the best in bold."""
    found = []
    for bed, ways in beds.items():
        start = next(iter(ways.values()))["start"]
        head = ["way", "what it does", f"a quarter of {TOKENS:,} generated", f"{TOKENS:,} generated",
                f"{TOKENS:,}, answers counted", "answers per 1,000 generated"]  # fmt: skip
        columns = ("early", "generated tokens", "all tokens")
        best = {column: max(ways, key=lambda name: ways[name][column][0]) for column in columns}
        lines = [head, ["---"] * len(head)]
        for way in WAYS:
            if way.method in ways:
                cells = []
                for column in columns:
                    value, low, high = ways[way.method][column]
                    said = f"{value:.3f} ({low:.3f} to {high:.3f})"
                    cells.append(f"**{said}**" if best[column] == way.method else said)
                given = ways[way.method]["answers per 1,000"]
                lines.append([f"`{way.method}`", way.about, *cells, f"{given:,.0f}" if given else "none"])
        rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        found.append(f"`{bed}`, which begins at {start:.3f}:\n\n{rows}")
    return "\n\n".join(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beds", nargs="+", default=BEDS, choices=BEDS)
    parser.add_argument("--ways", nargs="+", default=[way.method for way in WAYS])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=None)
    asked = parser.parse_args()
    here = record(CONFIRMING)
    ways = [way for way in WAYS if way.method in asked.ways]
    beds = {
        name: {way.method: measured(load_bed(f"language/{name}"), way, asked.seeds, asked.workers) for way in ways}
        for name in asked.beds
    }
    if len(ways) == len(WAYS):
        about = {"seeds": asked.seeds, "tokens": TOKENS, "processor": here["processor"], "commit": here["commit"]}
        known = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else {}
        known |= {name: {**about, "ways": found} for name, found in beds.items()}
        RECORD.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    print(table(beds))


if __name__ == "__main__":
    main()
