"""Pairs of runs of both arms with the same seed: a peer's, and etude's where the driver trains both libraries."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from etude.core.episodes import Problem
from etude.core.worlds import World
from etude.evaluation.pairs import Pair
from etude.experiments.watched import ends
from etude.runs.beds import Scores, load_bed
from peers.cases import Case
from peers.jobs import Run, do, run_of
from peers.scores import scores

Side = tuple[list[Run], Scores]


def peer_pairs(case: Case, seeds: Sequence[int], root: Path) -> list[Pair]:
    """The peer's pairs, trained if they are not there."""
    made = {seed: _begun(case, seed, root) for seed in seeds}
    arms = [[run_of(case, arm, seed, root, *made[seed]) for seed in seeds] for arm in (case.arm, case.baseline)]
    do([run for pair in zip(*arms) for run in pair])
    sides = [(runs, scores(case, arm, runs)) for arm, runs in zip((case.arm, case.baseline), arms)]
    return [_pair(case, seed, i, *sides) for i, seed in enumerate(seeds)]


def _pair(case: Case, seed: int, i: int, arm: Side, baseline: Side) -> Pair:
    """Both arms of a seed, by the claim's measures."""
    of_bed = {name: how for name, how in case.measures.items() if ":" not in how}
    return Pair(
        seed=seed,
        arm={name: _measured(how, i, arm) for name, how in case.measures.items()},
        baseline={name: case.coin.get(name) or _measured(how, i, baseline) for name, how in case.measures.items()},
        start={name: float(baseline[1].start[i]) for name in of_bed},
        budgets=_budgets(case, arm[0][i], baseline[0][i]),
        weights=(_hash(arm[0][i]), _hash(baseline[0][i])),
    )


def _measured(how: str, i: int, side: Side) -> float:
    """'end', 'area', or 'last:METRIC', the mean over the last quarter of what was logged."""
    runs, tested = side
    name, _, metric = how.partition(":")
    if metric:
        return ends([float(line[metric]) for line in runs[i].counted["log"] if metric in line])[1]
    return float(getattr(tested, name)[i])


def _budgets(case: Case, arm: Run, baseline: Run) -> dict[str, tuple[float, float]]:
    """What both runs counted, by the names of the claim's budgets."""
    said = [_used(run) for run in (arm, baseline)]
    return {name: (said[0][name], said[1][name]) for name in case.claim.equal}


def _used(run: Run) -> dict[str, float]:
    """Steps, completions, and problems that were learned from."""
    counted = run.counted
    found = {k: float(counted[k]) for k in ("steps", "completions", "tokens") if k in counted}
    return {**found, "environment_steps": found["steps"], "problems": found["steps"] * run.job.get("problems", 0)}


def _hash(run: Run) -> str:
    """Of the weights that a run ended with."""
    last = run.folder / f"step-{run.job['steps']}"
    file = last / "model.safetensors" if last.is_dir() else last.with_suffix(".npz")
    return hashlib.sha256(file.read_bytes()).hexdigest()[:12]


# Where runs begin that do not begin from the shipped model


def _begun(case: Case, seed: int, root: Path) -> tuple[Any, ...]:
    """The start and the pairs of a seed, as the claim's own experiment makes them; nothing for other cases."""
    if not case.ground.warm:
        return ()
    from etude.experiments.preference.dpo import compared

    start = _warm(root)
    pool = root / "pairs" / f"seed-{seed}.json"
    if not pool.is_file():
        pool.parent.mkdir(parents=True, exist_ok=True)
        pool.write_text(json.dumps([_plain(problem) for problem in compared((start, seed))]))
    return start, pool


@cache
def _warm(root: Path) -> str:
    """The fine-tuned model that the experiment of DPO begins from, made once."""
    from etude.experiments.arms import started
    from etude.experiments.cells import kept_in
    from etude.experiments.preference.dpo import TASK, WARM

    with kept_in(root / "starts"), started(TASK, steps=WARM) as first:
        return str(Path(first.folder).resolve())


def _plain(problem: Problem) -> dict[str, Any]:
    """A problem as JSON values."""
    return {"id": problem.id, "prompt": problem.prompt, "answer": problem.answer, "info": dict(problem.info)}


# etude's side


def own_pairs(case: Case, seeds: Sequence[int], root: Path) -> list[Pair]:
    """etude's pairs on the same bed, of claims that have no verdict about this world."""
    from etude.runs.jobs import run_jobs
    from etude.runs.measuring import pairs_of
    from etude.runs.tuning import arms_of

    assert case.world is World.CONTROL
    bed = load_bed(case.claim.bed)
    jobs = arms_of(bed, case.arm, case.claim, list(seeds), {}, root=root / "etude")
    run_jobs([*jobs[0], *jobs[1]], workers=1, quiet=True)
    return pairs_of(bed, [m.name for m in case.claim.measures], *jobs)


def recorded_pairs(lines: Iterable[str]) -> list[Pair]:
    """etude's pairs as published, from the `runs.jsonl` of a claim."""
    found = [json.loads(line) for line in lines]
    pairs = [Pair.from_json(line["pair"]) for line in found if line.get("setting") == "published"]
    return sorted(pairs, key=lambda pair: pair.seed)
