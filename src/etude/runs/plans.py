"""Plans: what the experiment of a claim will do, written and committed before anything is run.

`claims/<id>/plan.toml` says the claim as it stood: statement, bed, arms, measures, budgets, sweep, seeds. Runs and
verdict carry its hash. A plan that has runs is never changed: the next one is written beside it, with a reason, and the
old one is kept with all that came of it, in `claims/<id>/earlier/<number>/`.
"""

from __future__ import annotations

import json
import subprocess
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from etude.core.claims import Claim, Measure
from etude.core.errors import ConfigError
from etude.runs.beds import CONFIRMING, beds, load_bed
from etude.runs.code import text_hash

PLAN, RUNS, VERDICT, EARLIER = "plan.toml", "runs.jsonl", "verdict.json", "earlier"
BEDS = 3
"""Beds on which a claim may be tried: its first, and two more where it was void."""


@dataclass(frozen=True)
class Plan:
    """A claim as it was planned.

    Args:
        recipe: hash of the bed's recipe.
        first_seed: seeds that nobody has looked at begin here.
        reason: why an earlier plan was given up.
        hash: of the plan's text.
    """

    method: str
    claim: Claim
    recipe: str = ""
    first_seed: int = CONFIRMING
    reason: str = ""
    hash: str = field(default="", compare=False)


def write_plan(folder: Path, method: str, claim: Claim, reason: str = "") -> Path:
    """Write `plan.toml`, and put an earlier plan with all that came of it aside.

    Seeds that an earlier plan took on the same bed were looked at: another plan begins behind them.

    Raises: ConfigError for a second plan without a reason, one that is like the first, a fourth bed, and a measure that
    the bed has too few samples for.
    """
    _refuse_too_few_samples(method, claim)
    plan = Plan(method, claim, recipe_hash(claim), first_unseen(folder, claim), reason)
    path = folder / PLAN
    if path.is_file() and (folder / RUNS).is_file():
        _put_aside(folder, plan)
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(to_toml(plan), encoding="utf-8")
    return path


def _put_aside(folder: Path, plan: Plan) -> None:
    before = read_plan(folder)
    if same(before, replace(plan, first_seed=before.first_seed)):
        raise ConfigError(f"{folder / PLAN} says the same already: `etude claims run {plan.method}`.")
    if not plan.reason:
        raise ConfigError(
            f"{folder / PLAN} has runs already: give --reason, and the old plan is kept with its runs and verdict."
        )
    tried = {read_plan(kept).hash for kept in earlier(folder)} | {before.hash}
    if len(tried) >= BEDS:
        raise ConfigError(
            f"The claim of {plan.method} was planned {len(tried)} times, which is the most: what is void stays void."
        )
    put_aside(folder)


def first_unseen(folder: Path, claim: Claim) -> int:
    """The first seed behind those that plans with runs might have taken on the claim's bed."""
    plans = [read_plan(home) for home in (*earlier(folder), folder) if (home / RUNS).is_file()]
    taken = [p.first_seed + p.claim.most_seeds * p.claim.runs for p in plans if p.claim.bed == claim.bed]
    return max([CONFIRMING, *taken])


def earlier(folder: Path) -> list[Path]:
    """What was put aside, a folder each with plan, runs and verdict."""
    return sorted((folder / EARLIER).glob("*/")) if (folder / EARLIER).is_dir() else []


def put_aside(folder: Path) -> None:
    """Keep a plan with all that came of it in `earlier/<number>/`; the plan itself stays where it is, too."""
    home = folder / EARLIER / str(len(earlier(folder)) + 1)
    home.mkdir(parents=True)
    (home / PLAN).write_bytes((folder / PLAN).read_bytes())
    for name in (RUNS, VERDICT):
        if (folder / name).is_file():
            (folder / name).rename(home / name)


def same(one: Plan, other: Plan) -> bool:
    """Whether two plans say the same, but for their reasons."""
    first, second = (json.dumps({**_values(plan), "reason": ""}, sort_keys=True) for plan in (one, other))
    return first == second


def read_plan(folder: Path) -> Plan:
    """The plan of a claim. Raises ConfigError if there is none, or if it cannot be read."""
    path = folder / PLAN
    if not path.is_file():
        _, found, name = folder.as_posix().rpartition("claims/")  # a second world's is in a folder of the first's
        command = f"etude claims plan {name if found else folder.name}"
        raise ConfigError(f"There is no {path}: write it with `{command}`, and commit it.")
    text = path.read_text(encoding="utf-8")
    try:
        said = tomllib.loads(text)
        measures = tuple(Measure(**{**m, "bounds": _bounds(m)}) for m in said.pop("measures"))
        own = {f.name: said.pop(f.name) for f in fields(Plan) if f.name in said}
        values: dict[str, Any] = {k: tuple(v) if k == "equal" else v for k, v in _unset(said).items()}
        claim = Claim(measures=measures, **values)
    except (tomllib.TOMLDecodeError, TypeError, KeyError) as error:
        raise ConfigError(f"{path} is no plan: {error}.") from None
    return Plan(claim=claim, hash=text_hash(text), **own)


def _unset(said: dict[str, Any]) -> dict[str, Any]:
    """What TOML cannot say: nothing."""
    said.setdefault("learned_on", None)
    said.setdefault("sweep", None)
    return said


def _bounds(measure: Mapping[str, Any]) -> tuple[float | None, float | None] | None:
    if "bounds" not in measure:
        return None
    low, high = measure["bounds"]
    return (None if low == "none" else low, None if high == "none" else high)


def to_toml(plan: Plan) -> str:
    """The plan as a file that people read."""
    values = _values(plan)
    measures = values.pop("measures")
    tables = {k: values.pop(k) for k in list(values) if isinstance(values[k], Mapping)}
    lines = ["# What will be done, written before anything was run.", *(f"{k} = {_toml(v)}" for k, v in values.items())]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{json.dumps(k)} = {_toml(v)}" for k, v in table.items())]
    for measure in measures:
        lines += ["", "[[measures]]", *(f"{k} = {_toml(v)}" for k, v in measure.items())]
    return "\n".join(lines) + "\n"


def _values(plan: Plan) -> dict[str, Any]:
    """All that a plan says, defaults that nobody would miss left out."""
    claim = plan.claim
    said: dict[str, Any] = {"method": plan.method, "statement": claim.statement, "recipe": plan.recipe}
    said |= {f.name: getattr(claim, f.name) for f in fields(Claim) if f.name not in ("statement", "measures")}
    said |= {"first_seed": plan.first_seed, "reason": plan.reason}
    usual = {"runs": 1}
    kept = {
        k: v for k, v in said.items() if v not in ("", (), None) and (v != {} or k == "sweep") and usual.get(k) != v
    }
    return {**kept, "measures": [_measure(m) for m in claim.measures]}


def _measure(measure: Measure) -> dict[str, Any]:
    changed = {f.name: getattr(measure, f.name) for f in fields(Measure)}
    given = {f.name for f in fields(Measure) if f.default is MISSING or changed[f.name] != f.default}
    said = {k: v for k, v in changed.items() if k in {*given, "role", "direction"}}
    return said if measure.bounds is None else {**said, "bounds": ["none" if b is None else b for b in measure.bounds]}


def _toml(value: object) -> str:
    """A value of TOML: JSON writes strings, numbers, truth values and lists the same way."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)


def recipe_hash(claim: Claim) -> str:
    """A name for the bed as it stands; '' for a claim without one. Raises UnknownNameError for an unknown bed."""
    if not claim.bed:
        return ""
    load_bed(claim.bed)
    return text_hash(beds().get(claim.bed, Path(claim.bed)).read_text(encoding="utf-8"))


def _refuse_too_few_samples(method: str, claim: Claim) -> None:
    """A bed whose problems are sampled fewer than k times does not measure pass@k."""
    if not claim.bed or (bed := load_bed(claim.bed)).goal.together:
        return
    for measure in claim.measures:
        k = measure.name.partition(":")[2].removeprefix("pass@")
        if k.isdecimal() and int(k) > bed.test.samples:
            raise ConfigError(
                f"{method} is to be measured by {measure.name}, and {claim.bed} takes {bed.test.samples} samples of a "
                f"problem: choose another measure, or a bed with `samples = {k}` or more under [test]."
            )


# What must be so before anything is run


def check_plan(folder: Path, plan: Plan, claim: Claim) -> None:
    """Raise ConfigError unless the plan is the claim in the code, on the bed as it stands, and committed."""
    again = f"write another with `etude claims plan {plan.method} --reason ...`"
    if not same(plan, Plan(plan.method, claim, recipe_hash(claim), plan.first_seed)):
        raise ConfigError(f"{folder / PLAN} is not what {plan.method} claims now, or its bed has changed: {again}.")
    if _git(folder, "status", "--porcelain", "--", PLAN) or not _git(folder, "log", "-1", "--format=%H", "--", PLAN):
        raise ConfigError(f"{folder / PLAN} must be committed before anything is run: `git add` and `git commit` it.")


def clean_commit(folder: Path) -> str:
    """The commit that everything but what claims came to stands on. Raises ConfigError if anything else has changed."""
    changed = [line[3:] for line in _git(folder, "status", "--porcelain", "--untracked-files=no").splitlines()]
    others = [name for name in changed if not name.endswith((f"/{RUNS}", f"/{VERDICT}"))]
    if others:
        raise ConfigError(
            f"Claims are run from a commit, so that others can run the same, but {', '.join(others[:3])} "
            f"{'was' if len(others) == 1 else 'were'} changed since: commit first."
        )
    return _git(folder, "rev-parse", "HEAD")


def _git(folder: Path, *words: str) -> str:
    """What git says in a folder. Raises ConfigError if it is in no repository."""
    try:
        done = subprocess.run(
            ["git", *words], cwd=folder, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        raise ConfigError(f"Claims are run from a git repository, and git says of {folder}: {said.strip()}.") from None
    return done.stdout.rstrip()
