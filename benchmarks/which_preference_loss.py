"""Which preference loss: twelve ways to learn from the same comparisons, and what they earn for how far they go.

    python benchmarks/which_preference_loss.py                       # train what is missing, then print the tables
    python benchmarks/which_preference_loss.py --data "4,000 pairs" --ways DPO RLOO --seeds 2 --workers 1

All begin at the same writer of `digest`, whose gold score is known, and take 100 steps of 64 prompts. What they know of
it are pairs. Some learn from the pairs themselves, some from four answers to each of the same prompts and some from
two samples of their own to each prompt, both scored by one reward model of these pairs. Every way is run with three
strengths of what holds it back, after its rate was chosen from `RATES` by the gold score that the middle strength comes
to on a seed of its own with 4,000 right pairs. Runs are kept below runs/beds, where what was stopped goes on; numbers
of each quality of data go to records/which_preference_loss.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _judged_digest import JudgedDigest, judge, rightly_ordered

from etude.evaluation.frontiers import Frontier, matched
from etude.evaluation.intervals import Band, Interval
from etude.evaluation.plots import draw_panels
from etude.evaluation.verdicts import paired_interval
from etude.runs.beds import CONFIRMING, RUNS, TUNING, Bed, load_bed, model_of, runs_of, scores_of
from etude.runs.code import text_hash
from etude.runs.frontiers import frontiers
from etude.runs.jobs import Job, Workers, run_jobs
from etude.runtime.disk import replace_file
from etude.runtime.environment import record

HERE = Path(__file__).resolve().parent
RECORD = HERE / "records" / "which_preference_loss.json"
PICTURE = HERE.parent / "docs" / "images" / "which-preference-loss.png"
JUDGED = HERE / "_judged_digest.py"
BED, PROBLEMS, SAMPLES, LEVEL = "preference/digest", 400, 2, 0.95
RATES = (1e-4, 3e-4, 1e-3, 3e-3)
LEVELS = (0.5, 1.0, 2.0, 4.0)
"""Divergences from the start, in nats per answer, at which gold scores are compared."""
SHOWN = 6.0
"""The largest divergence of the picture."""
CLEAN = "4,000 pairs"
DATA: Mapping[str, Mapping[str, Any]] = {
    "500 pairs": {"task.size": 500},
    CLEAN: {},
    "4,000 pairs, a fifth turned": {"task.wrong": 0.2},
    "4,000 pairs of another writer": {"task.slips": 0.3},
}
"""Fields of the pairs. The other writer slips: three of ten of his words are any, in the prompt or not."""
PASSES = {"500 pairs": 60}
"""Steps of the reward model where they are fewer than the bed's: each pair is seen four to eight times."""
SHARED = {"problems": 64}
SCORED = {**SHARED, "experience.size": 2, "rewards.reward-model.model": "{proxy}", "rewards.reward-model.weight": 0.2}
HELD = (0.01, 0.05, 0.2)
"""Coefficients of the penalty on divergence, where samples are scored."""


class Way(NamedTuple):
    """A way to learn from comparisons.

    Args:
        field, values: what holds it back, and how much.
        learns: from 'pairs', 'scores' of given answers or 'samples' of its own.
    """

    name: str
    method: str
    learns: str
    field: str
    values: tuple[float, ...]
    fields: Mapping[str, Any] = SHARED


PENALTY = "rewards.kl-penalty.coefficient"
RRHF = {
    **SHARED, "experience": "scored-answers", "objective": "ranked-candidates", "objective.least": -1e9,
    "reference": "none",
}  # fmt: skip
WAYS = (
    Way("DPO", "dpo", "pairs", "objective.beta", (0.03, 0.1, 0.5)),
    Way("DPO by length", "tulu-3-dpo", "pairs", "objective.link.beta", (0.2, 1.0, 5.0)),
    Way("IPO", "ipo", "pairs", "objective.link.beta", (0.03, 0.1, 0.5)),
    Way("ORPO", "orpo", "pairs", "objective.weight", (10.0, 1.0, 0.1)),
    Way("SimPO", "simpo", "pairs", "objective.link.beta", (0.5, 2.0, 8.0)),
    Way("KTO", "kto", "pairs", "objective.beta", (0.03, 0.1, 0.5)),
    Way("RRHF", "dpo", "scores", "objective.nll", (0.01, 0.1, 1.0), RRHF),
    Way("CoPG", "copg", "scores", "objective.link.beta", (0.1, 0.3, 1.0)),
    Way("A-LoL", "a-lol-offline", "scores", "objective.factor.epsilon", (0.9, 0.5, 0.1)),
    Way("REBEL", "rebel", "samples", PENALTY, HELD,
        {"rewards": "reward-model,missing-end,kl-penalty", **SCORED}),
    Way("P3O", "p3o", "samples", PENALTY, HELD, {"rewards": "reward-model,kl-penalty", **SCORED}),
    Way("RLOO", "rloo", "samples", PENALTY, HELD,
        {"rewards": "reward-model,kl-penalty", "reference": "frozen", **SCORED}),
)  # fmt: skip


# Runs


def bed_of(data: str) -> Bed:
    """The bed, with a reward model of these pairs."""
    bed = load_bed(BED)
    proxy = bed.made["proxy"]
    own = dataclasses.replace(proxy, steps=PASSES.get(data, proxy.steps), set={**proxy.set, **DATA[data]})
    test = dataclasses.replace(bed.test, every=bed.steps)
    return dataclasses.replace(bed, test=test, made={**bed.made, "proxy": own})


def jobs_of(way: Way, data: str, strength: float, rate: float, seeds: int, first: int = CONFIRMING) -> list[Job]:
    """Runs of a way on such data with one strength, `seeds` of them."""
    bed = bed_of(data)
    fields = {"optimizer.lr": rate, **way.fields, **DATA[data], way.field: strength}
    if way.learns == "scores":  # on a task of their own, which the bed's start knows nothing of
        start = model_of(bed, "start")
        fields["task.judged"] = judged(data)
        task = f"{JUDGED}:judged_digest"
        bed = dataclasses.replace(bed, task=task, baseline_set={}, model=start, start=None, made={})
    return runs_of(bed, way.method, seeds, fields, first=first)


@cache
def judged(data: str) -> str:
    """The file of what the reward model says of the answers in such data, written if it is not there."""
    bed = bed_of(data)
    start, scorer = model_of(bed, "start"), model_of(bed, "proxy")
    path = RUNS / "judged" / f"{text_hash(json.dumps([start, scorer, DATA[data], JUDGED.read_text()]))}.json"
    if not path.is_file():
        fields = {name.removeprefix("task."): value for name, value in DATA[data].items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(judge(JudgedDigest(**fields), start, scorer, TUNING)).encode())
    return str(path.resolve())


def known_record() -> dict[str, Any]:
    """What was written down, by data."""
    return dict(json.loads(RECORD.read_text(encoding="utf-8"))) if RECORD.is_file() else {}


def rates(ways: Sequence[Way], workers: Workers) -> dict[str, dict[str, float]]:
    """The gold score that each way comes to with each rate, on the clean data with its middle strength: one choice for
    all data, so what was written down with the clean ones is used again."""
    known = known_record().get(CLEAN, {}).get("rates", {})
    if all(set(known.get(way.name, ())) == {str(rate) for rate in RATES} for way in ways):
        return {way.name: known[way.name] for way in ways}
    tried = {(way.name, rate): jobs_of(way, CLEAN, way.values[1], rate, 1, TUNING) for way in ways for rate in RATES}
    run_jobs([job for jobs in tried.values() for job in jobs], workers)
    bed = bed_of(CLEAN)
    return {
        way.name: {str(rate): round(float(scores_of(bed, tried[way.name, rate]).end[0]), 3) for rate in RATES}
        for way in ways
    }


def measured(data: str, jobs: Sequence[Sequence[Job]]) -> list[dict[str, Any]]:
    """What each seed of a way came to, from its runs by strength: divergences, gold scores, and the start's."""
    bed = bed_of(data)
    found = frontiers(bed.goal, jobs, model_of(bed, "start"), bed.metric, bed.split, PROBLEMS, SAMPLES)
    return [{"kl": rounded(f.kl), "gold": rounded(f.score), "start": round(f.start, 4)} for f in found]


def accuracy(data: str) -> float:
    """How often the reward model of these pairs orders two of the first writer's answers to unseen prompts rightly."""
    bed = bed_of(data)
    return round(rightly_ordered(model_of(bed, "start"), model_of(bed, "proxy"), PROBLEMS, TUNING), 3)


def rounded(values: Sequence[float]) -> list[float]:
    """To four places."""
    return [round(float(x), 4) for x in values]


# What came of it


def read(ends: Sequence[Mapping[str, Any]]) -> list[Frontier]:
    """The frontier of each seed."""
    return [Frontier(each["kl"], each["gold"], each["start"]) for each in ends]


def interval(values: Sequence[float]) -> Interval:
    """A mean over seeds, or over pairs of them."""
    return paired_interval(np.array(values), 0.0, level=LEVEL)


def columns(found: Sequence[Frontier], beside: Sequence[Frontier] | None) -> Iterator[Interval | None]:
    """Gold at each of the divergences, the best of three strengths, and the height beside another way's."""
    for kl in LEVELS:
        there = all(f.reach >= kl for f in found)
        yield interval([float(f.at(np.array(kl))) for f in found]) if there else None
    means = np.mean([f.score for f in found], axis=0)
    yield interval([f.score[int(means.argmax())] for f in found])
    yield None if beside is None else interval([np.subtract(*matched(f, b)) for f, b in zip(found, beside)])


def table(ways: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """One quality of data as Markdown, the highest of each column in bold."""
    cells = cells_of(ways)
    return markdown([*(f"at {kl:g}" for kl in LEVELS), "best", f"beside {next(iter(ways))}"], cells)


def across(data: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]], column: int) -> str:
    """One column of every quality's table side by side: -2 the best, -1 the height beside the first way."""
    each = [cells_of(ways) for ways in data.values()]
    return markdown([*data], {name: [cells[name][column] for cells in each] for name in each[0]})


def cells_of(ways: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[Interval | None]]:
    """`columns` of each way, beside the first."""
    found = {name: read(ends) for name, ends in ways.items()}
    first = next(iter(found))
    return {name: list(columns(f, None if name == first else found[first])) for name, f in found.items()}


def markdown(heads: Sequence[str], cells: Mapping[str, Sequence[Interval | None]]) -> str:
    """Ways with what they learn from, and their cells."""
    tops = [max((c.value for c in column if c is not None), default=None) for column in zip(*cells.values())]
    head = ["way", "learns from", *heads]
    lines = [head, ["---"] * len(head)]
    for way in WAYS:
        if way.name in cells:
            said = [shown(c, top) for c, top in zip(cells[way.name], tops)]
            lines.append([way.name, way.learns, *said])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def shown(cell: Interval | None, top: float | None) -> str:
    """A mean and its interval; bold where it is the highest."""
    if cell is None:
        return "-"
    text = f"{cell.value:.2f} ({cell.low:.2f} to {cell.high:.2f})"
    return f"**{text}**" if cell.value == top else text


def draw(data: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]) -> Path:
    """Gold against divergence, a panel for each quality of data and what is learned from; bands are seeds' ranges."""
    panels: dict[str, dict[str, Band]] = {}
    learns = {way.name: way.learns for way in WAYS}
    for quality, ways in data.items():
        for name, ends in ways.items():
            found = read(ends)
            at = np.linspace(0.0, min(SHOWN, *(f.reach for f in found)), 30)
            lines = np.array([f.at(at) for f in found])
            panel = panels.setdefault(f"{quality}: from {learns[name]}", {})
            panel[name] = Band(at, lines.mean(0), lines.min(0), lines.max(0))
    return draw_panels(
        panels, PICTURE, x_label="KL from the start, nats per answer", y_label="gold score", legends=True
    )


def trained(ways: Sequence[Way], data: Sequence[str], seeds: int, workers: int | None) -> dict[str, Any]:
    """What ways came to, by data and way; that of all of them is written down beside what is known of other data."""
    here, found = record(CONFIRMING), dict[str, Any]()
    with Workers(workers) as pool:
        tuned = rates(ways, pool)
        print(json.dumps(tuned))
        best = {name: float(max(tried, key=tried.__getitem__)) for name, tried in tuned.items()}
        for quality in data:
            jobs = {w.name: [jobs_of(w, quality, v, best[w.name], seeds) for v in w.values] for w in ways}
            run_jobs([job for each in jobs.values() for some in each for job in some], pool)
            found[quality] = {name: measured(quality, each) for name, each in jobs.items()}
            if len(ways) == len(WAYS):
                about = {"seeds": seeds, "processor": here["processor"], "commit": here["commit"], "rates": tuned}
                known = known_record()
                known[quality] = {**about, "pair_accuracy": accuracy(quality), "ways": found[quality]}
                RECORD.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=list(DATA), choices=list(DATA))
    parser.add_argument("--ways", nargs="+", default=[way.name for way in WAYS], choices=[way.name for way in WAYS])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--page", action="store_true", help="only print the tables and draw the picture of the record")
    asked = parser.parse_args()
    if asked.page:
        record_of = known_record()
        known = {quality: record_of[quality]["ways"] for quality in DATA if quality in record_of}
    else:
        known = trained([way for way in WAYS if way.name in asked.ways], asked.data, asked.seeds, asked.workers)
    for quality, found in known.items():
        print(f"\n{quality}\n\n{table(found)}")
    if asked.page:
        print(f"\nbest\n\n{across(known, -2)}\n\nbeside the first\n\n{across(known, -1)}\n\n{draw(known)}")


if __name__ == "__main__":
    main()
