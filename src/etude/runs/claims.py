"""Claims: the experiment that a plan asks for, run pair by pair, and the verdict that follows from what came out.

`claims/<id>/` holds `plan.toml`, written and committed before (`plans.py`); `runs.jsonl`, a line for each pair of runs,
and one for what tuning came to; and `verdict.json`, which is derived from the two and can be derived again.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from etude.core.claims import Claim, Measure
from etude.core.errors import ConfigError
from etude.core.method import Method
from etude.core.registry import ROOT, compositions, files, get_method
from etude.evaluation.gates import Verdict, sequential
from etude.evaluation.pairs import Pair, Results
from etude.evaluation.verdicts import LOOKS
from etude.runs.claim_runs import PUBLISHED, TUNED, Collect, Lines, collector
from etude.runs.code import code_of, text_hash
from etude.runs.jobs import Workers
from etude.runs.plans import PLAN, RUNS, VERDICT, Plan, check_plan, clean_commit, put_aside, read_plan
from etude.runtime.jsonl import JsonLines

MADE_OF = "made_of"
"""Of a verdict: the parts and values of both arms, as they were."""
SHIPPED = next((p for p in (ROOT / "claims", ROOT.parent.parent / "claims") if p.is_dir()), ROOT / "claims")
"""etude's own: inside an installed package, or beside the source."""
PLACES = (Path("claims"), SHIPPED)
"""Where claims are: in the folder that one works in, or etude's own."""
KEPT = Path("runs")
"""Where runs are kept."""


def claims() -> dict[str, Method]:
    """The composition behind each claim, by the claim's name: the method's, with its world if two worlds have one."""
    return {name: method for id_ in files("methods") for name, method in claims_in(id_).items()}


def claims_in(method: str) -> dict[str, Method]:
    """Those of one method, the first by its id alone."""
    made = [m for m in compositions(method) if m.claim is not None]
    return {method if i == 0 else f"{method}/{sorted(m.worlds)[0]}": m for i, m in enumerate(made)}


def claim_of(name: str) -> tuple[Method, Claim]:
    """A method, one of the user's own too, and what it claims. Raises ConfigError if it claims nothing."""
    method = claims_in(_owner(name))[name] if _built_in(name) else get_method(name)
    if method.claim is None:
        raise ConfigError(f"{name} makes no claim.")
    return method, method.claim


def _built_in(name: str) -> bool:
    return _owner(name) in files("methods") and name in claims_in(_owner(name))


def _owner(name: str) -> str:
    """The id of the method that makes a claim, without the world of a second one."""
    return name.partition("/")[0]


def arm_of(name: str) -> str:
    """What runs of the method are made by: its id, or the name of one's own file."""
    return claim_of(name)[0].id if _built_in(name) else name


def folder_of(name: str) -> Path:
    """Where a claim is kept, named by the method's id: in this folder, or beside the source if it is there."""
    label = name if _built_in(name) else claim_of(name)[0].id
    return next((p / label for p in PLACES if (p / label).is_dir()), PLACES[0] / label)


def recorded(name: str) -> dict[str, Any] | None:
    """The verdict on a claim; None if it was never run."""
    path = folder_of(name) / VERDICT
    return dict(json.loads(path.read_text())) if path.is_file() else None


def verdict_of(name: str) -> str | None:
    """The recorded outcome, 'stale' added where it is about something else by now; None if the claim was never run."""
    record = recorded(name)
    if record is None:
        return None if (old := before(name)) is None else f"{old} (by earlier rules)"
    return f"{record['verdict']} (stale)" if stale(name, record) else str(record["verdict"])


def outcome_of(name: str) -> str:
    """The verdict, or how far a claim without one is: 'open after 12 tuned pairs', 'not run yet'."""
    return verdict_of(name) or _open(folder_of(name) / RUNS) or "not run yet"


def _open(path: Path) -> str | None:
    """How many pairs are recorded that did not decide; None if there are none."""
    settings = [line["setting"] for line in JsonLines.read(path) if "setting" in line] if path.is_file() else []
    counts = [f"{settings.count(s)} {s}" for s in (TUNED, PUBLISHED) if s in settings]
    return f"open after {' and '.join(counts)} pairs" if counts else None


def before(name: str) -> str | None:
    """What was recorded before there were beds, pairs and gates, of claims that have not been run again."""
    path = PLACES[-1] / "before" / f"{name}.json"
    return str(json.loads(path.read_text())["verdict"]) if path.is_file() else None


def deciding(record: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a verdict that decides: after tuning where there was any."""
    return dict(record.get(TUNED) or record[PUBLISHED])


def units(measure: Mapping[str, Any]) -> tuple[float, float, float]:
    """A recorded difference and its interval in units of the smallest that matters."""
    gap = measure["difference"]
    ends = [math.nan if gap[k] is None else gap[k] / measure["smallest"] for k in ("value", "low", "high")]
    return ends[0], ends[1], ends[2]


def waiting() -> list[str]:
    """Claims that have a plan and no verdict that follows from it."""
    planned = [name for name in claims() if (folder_of(name) / PLAN).is_file()]
    return [name for name in planned if (recorded(name) or {}).get("plan") != read_plan(folder_of(name)).hash]


# What a verdict rests on


def rests_on(method: Method, claim: Claim) -> dict[str, str]:
    """Names for the code and the recipe that a verdict rests on."""
    from etude.experiments import experiment_file
    from etude.runs.arms import composition
    from etude.runs.plans import recipe_hash

    found = {what: composition(arm, sorted(method.worlds)[0]) for what, arm in _arms(method, claim).items()}
    if claim.bed:
        return {**found, "bed": recipe_hash(claim)}
    own = experiment_file(method.id)
    return {**found, "experiment": text_hash(code_of(own))} if own else found


def edited(name: str, record: Mapping[str, Any]) -> list[str]:
    """Of what the verdict rests on, what has changed, if only how its code is written; names as in `rests_on`."""
    now = rests_on(*claim_of(name))
    return [what for what, before in record["rests_on"].items() if now.get(what) != before]


def stale(name: str, record: Mapping[str, Any]) -> list[str]:
    """Of what the verdict rests on, what is not the same any more: 'method', 'baseline', 'bed', 'experiment'.

    A method whose code was edited, and which has the parts and values that it had then, is the same: what its equations
    come to is pinned by tests.
    """
    from etude.runs.arms import still_made_of

    method, claim = claim_of(name)
    arms, before = _arms(method, claim), record.get(MADE_OF, {})
    return [
        what for what in edited(name, record)
        if not (what in before and still_made_of(before[what], arms[what], sorted(method.worlds)[0]))
    ]  # fmt: skip


def _arms(method: Method, claim: Claim) -> dict[str, Any]:
    """Both arms, as `rests_on` calls them; an experiment has its own."""
    return {"method": method, "baseline": claim.baseline} if claim.bed else {"method": method}


# The experiment


def run_claim(
    name: str, *, runs: Path = KEPT, workers: int | Workers | None = None, again: bool = False
) -> dict[str, Any]:
    """Do what a claim's plan says, from where it was stopped, and write its verdict.

    Where every run is there already and the verdict follows from them, it is left as it is: it rests on the code that
    they were made with.

    Args:
        runs: where runs are kept.
        workers: runs at a time, or what does them, as for `run_jobs`.
        again: run all of it anew, because code has changed; what is recorded is put aside.

    Raises: ConfigError if there is no plan, if it is not committed, if it is not what the method claims now, if its
    runs belong to another plan, if the tree has changes that are not committed, or if nothing that the verdict rests on
    has changed and it is to be run again.
    """
    method, claim = claim_of(name)
    folder = folder_of(name)
    plan = read_plan(folder)
    check_plan(folder, plan, claim)
    commit, lines = clean_commit(folder), Lines(folder / RUNS, plan)
    if again:
        _begin_anew(name, folder)
    began = time.monotonic()
    collect = collector(method, arm_of(name), plan, lines, commit, folder=folder, runs=runs, workers=workers)
    had, record = len(lines.read()), recorded(name)
    *others, decides = settings_of(plan)
    used = used_by(_collect(decides, plan, lines, commit, collect))
    for setting in others:
        _collect(setting, plan, lines, commit, collect, stop=used)
    if record and len(lines.read()) == had and not _differs(record, plan, lines):
        return record
    return _write(folder, name, plan, lines, commit, time.monotonic() - began)


def settings_of(plan: Plan) -> tuple[str, ...]:
    """As published, and tuned where there is a sweep; the last one decides, and no other is given more pairs."""
    from etude.runs.beds import load_bed

    sweep = plan.claim.sweep
    if sweep is None and plan.claim.bed:
        sweep = load_bed(plan.claim.bed).sweep
    return (PUBLISHED, TUNED) if sweep else (PUBLISHED,)


def _collect(setting: str, plan: Plan, lines: Lines, commit: str, collect: Collect, stop: int | None = None) -> Verdict:
    """Add pairs, look by look, until they decide or are so many."""

    def first(count: int) -> Results:
        have = {pair.seed for pair in lines.pairs(setting)}
        wanted = [seed for seed in range(plan.first_seed, plan.first_seed + count) if seed not in have]
        if wanted:
            how = "as published" if setting == PUBLISHED else "after the same tuning of both arms"
            done = count - len(wanted)
            say = f"{plan.method}, {how}: pairs {done + 1} to {count} of at most {plan.claim.most_seeds}."
            print(say, file=sys.stderr)
            lines.add(commit, [{"setting": setting, "pair": p.to_json()} for p in collect(setting, wanted)])
        return Results.of(lines.pairs(setting)[:count])

    return judged(plan, first, _as_many(lines.pairs(setting), stop))


def judged(plan: Plan, first: Callable[[int], Results], stop: int | None = None) -> Verdict:
    """The verdict on a plan, from its first 6, 12, 24, 48 pairs."""
    claim = plan.claim
    measures, most = measures_of(claim), claim.most_seeds
    return sequential(first, measures, learned_on=claim.learned_on, equal=claim.equal, most=most, stop=stop)


def used_by(verdict: Verdict) -> int:
    """Pairs that a verdict follows from."""
    return max(finding.pairs for finding in verdict.findings.values())


def _as_many(pairs: Sequence[Pair], used: int | None) -> int | None:
    """Pairs for a setting that decides nothing: as many as the one that does took, or all that are there already."""
    return None if used is None else max([used, *(look for look in LOOKS if look <= len(pairs))])


def measures_of(claim: Claim) -> list[Measure]:
    """Its measures, those of a bed's metric with the bed's floor and ceiling."""
    from etude.runs.beds import load_bed

    if not claim.bed:
        return list(claim.measures)
    bounds = load_bed(claim.bed).bounds
    own = {
        "end": bounds, "area": bounds, "frontier": bounds, "frontier:kl": (0.0, None),
        "ceiling": (None, None), "rate": (None, None),
    }  # fmt: skip
    return [replace(m, bounds=own[m.name]) if m.name in own and m.bounds is None else m for m in claim.measures]


def _begin_anew(name: str, folder: Path) -> None:
    """Put the record of a claim aside, if something that it rests on has changed."""
    record = recorded(name)
    if record is None or not stale(name, record):
        raise ConfigError(
            f"Nothing that the verdict on {name} rests on has changed, so the same runs would come again."
            if record
            else f"{name} has no verdict yet: run it without --again."
        )
    put_aside(folder)


# The verdict


def derive(plan: Plan, lines: Lines) -> dict[str, Any]:
    """The verdict that follows from a plan and its runs. Raises ConfigError if pairs are missing."""
    *others, last = settings_of(plan)
    found = {last: _follows(plan, lines.pairs(last))}
    for setting in others:
        found[setting] = _follows(plan, lines.pairs(setting), stop=found[last]["pairs"])
    said = {setting: found[setting] for setting in (*others, last)}
    tuned = lines.tuned()
    return {
        "method": plan.method, "statement": plan.claim.statement, "bed": plan.claim.bed,
        "baseline": plan.claim.baseline, "plan": plan.hash, "verdict": said[last]["verdict"], **said,
        **({"tuning": tuned} if tuned else {}),
    }  # fmt: skip


def _follows(plan: Plan, pairs: Sequence[Pair], stop: int | None = None) -> dict[str, Any]:
    """What is said of one setting."""
    verdict = judged(plan, partial(_first, plan, pairs), _as_many(pairs, stop))
    used = used_by(verdict)
    return {**verdict.to_json(), "pairs": used, "means": _means(pairs[:used])}


def _first(plan: Plan, pairs: Sequence[Pair], count: int) -> Results:
    wanted = range(plan.first_seed, plan.first_seed + count)
    chosen = [pair for pair in pairs if pair.seed in wanted]
    if len(chosen) < count:
        raise ConfigError(
            f"{plan.method} has {len(chosen)} of {count} pairs: go on with `etude claims run {plan.method}`."
        )
    return Results.of(chosen)


def _means(pairs: Sequence[Pair]) -> dict[str, dict[str, float]]:
    """Mean scores of both arms, and of the start, by measure."""
    results = Results.of(pairs)
    sides = {"arm": results.arm, "baseline": results.baseline, "start": results.start}
    return {s: {k: round(sum(v) / len(v), 6) for k, v in scores.items()} for s, scores in sides.items() if scores}


def _write(folder: Path, name: str, plan: Plan, lines: Lines, commit: str, seconds: float) -> dict[str, Any]:
    from etude.runs.arms import made_of
    from etude.runtime import disk
    from etude.runtime.environment import record

    before, here, (method, claim) = recorded(name) or {}, record(0), claim_of(name)
    about = {
        **derive(plan, lines),
        "rests_on": rests_on(method, claim),
        MADE_OF: {what: made_of(arm, sorted(method.worlds)[0]) for what, arm in _arms(method, claim).items()},
        "seconds": round(seconds + before.get("seconds", 0.0) * (before.get("plan") == plan.hash), 1),
        "environment": {"commit": commit, **{k: here[k] for k in ("versions", "processor", "kernels")}},
    }
    disk.replace_file(folder / VERDICT, (json.dumps(about, indent=1) + "\n").encode())
    return about


def check(name: str) -> list[str]:
    """Sentences about what is wrong with a claim's record; none if all is well."""
    record, folder = recorded(name), folder_of(name)
    if record is None:
        return [f"{name} has no verdict: {outcome_of(name)}."]
    plan = read_plan(folder)
    differs = _differs(record, plan, Lines(folder / RUNS, plan))
    wrong = [f"{name}: {k} in {VERDICT} does not follow from {RUNS}." for k in differs]
    changed = stale(name, record)
    return wrong + ([f"{name}: the {' and the '.join(changed)} changed since the verdict."] if changed else [])


def _differs(record: Mapping[str, Any], plan: Plan, lines: Lines) -> list[str]:
    """What of a record does not follow from its runs."""
    return [k for k, v in _plain(derive(plan, lines)).items() if not same(record.get(k), v)]


def same(one: Any, other: Any) -> bool:
    """Whether JSON values are equal, numbers to their sixth digit: Python 3.12 adds in another way than 3.11.

    >>> same({"end": [202.599687]}, {"end": [202.599688]}), same(0.5, 0.50001), same({"end": 1}, {})
    (True, False, False)
    """
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=2e-6)
    return bool(one == other)


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))
