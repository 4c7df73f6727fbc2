"""`etude claims`: what papers say, checked here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from etude.core.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from etude.core.claims import Claim

claims = App(
    name="claims",
    help="What papers say and what came out here; `show`, `look`, `plan`, `run` and `check` take their names.",
)


@claims.default
def list_claims() -> None:
    """Every claim with its verdict, and below it the sentence and what it was checked on.

    The difference is in units of the smallest that matters: within 1 is equivalent.
    """
    from rich.console import Console
    from rich.padding import Padding

    from etude.runs.claims import claims as known
    from etude.runs.claims import outcome_of, recorded

    console = Console(highlight=False)
    for name, method in known().items():
        if method.claim is not None:
            record = recorded(name)
            console.print(f"{name:<31} {outcome_of(name)}", style="bold", markup=False)
            if record is not None:
                found = "{} in {} pairs".format(*_figures(record, method.claim))
                console.print(Padding(found, (0, 0, 0, 4)), markup=False)
            where = method.claim.bed or method.claim.setting or method.claim.task
            console.print(Padding(f"{method.claim.statement} ({where})", (0, 0, 0, 4)), markup=False)


def _figures(record: dict[str, Any], claim: Claim) -> tuple[str, int]:
    """A difference with its interval, and how many pairs it rests on: of the first core measure that says what the
    verdict says, by its name where there are several, else of the first.
    """
    from etude.runs.claims import deciding, units

    measures = deciding(record)["measures"]
    core = [m.name for m in claim.measures if m.role == "core" and m.name in measures] or list(measures)
    name = next((k for k in core if measures[k]["verdict"] == record["verdict"]), core[0])
    value, low, high = units(measures[name])
    of = f"{name}: " if len(core) > 1 else ""
    return f"{of}{value:+.1f} ({low:+.1f} to {high:+.1f})", measures[name]["pairs"]


@claims.command
def show(method: str) -> None:
    """A claim, how it is checked, and every measure of its verdict; `matters` is the smallest difference that does.

    Parameters
    ----------
    method
        Whose claim (`etude claims`).
    """
    from rich.console import Console

    from etude.runs.claim_runs import PUBLISHED, TUNED
    from etude.runs.claims import claim_of, edited, folder_of, outcome_of, recorded
    from etude.runs.plans import PLAN

    (_, claim), record, folder = claim_of(method), recorded(method), folder_of(method)
    console = Console(highlight=False, markup=False)
    console.print(claim.statement, style="bold")
    if claim.bed:
        console.print(f"Checked against {claim.baseline} on the bed {claim.bed}.")
    else:
        console.print(f"Checked by an experiment of its own: {claim.setting or claim.task}.")
    if claim.paper_effect:
        console.print(f"The paper reports: {claim.paper_effect.rstrip('.')}.")
    console.print(f"Verdict: {outcome_of(method)}.")
    if record:
        commit = str(record.get("environment", {}).get("commit", ""))[:10]
        touched = edited(method, record)
        since = f"; the code of its {' and '.join(touched)} was edited since" if touched else ""
        console.print(f"Run with the code of commit {commit}{since}.")
    for setting, title in ((PUBLISHED, "As published"), (TUNED, "After the same tuning of both arms")):
        if record and setting in record:
            _evidence(console, title, record[setting])
    planned = (folder / PLAN).is_file()
    console.print(f"  {folder / PLAN}" if planned else f"No plan yet: `etude claims plan {method}`.", soft_wrap=True)


def _evidence(console: Console, title: str, part: dict[str, Any]) -> None:
    """Measures of one setting of both arms, and why it is void if it is."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    names = ("method", "baseline", "difference", "interval", "matters", "pairs", "verdict")
    table = Table(title=f"{title}:", title_justify="left", title_style="", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    longest = max(len(word) for name in part["measures"] for word in name.split())
    table.add_column("measure", min_width=longest)
    for name in names:
        table.add_column(name, no_wrap=name != "interval")
    for name, found in part["measures"].items():
        means = (part["means"].get(side, {}).get(name) for side in ("arm", "baseline"))
        gap = found["difference"]
        ends = ("unbounded" if gap[k] is None else f"{gap[k]:+.3g}" for k in ("low", "high"))
        table.add_row(
            name, *("" if m is None else f"{m:.3g}" for m in means), f"{gap['value']:+.3g}", " to ".join(ends),
            f"{found['smallest']:.3g}", str(found["pairs"]), found["verdict"],
        )  # fmt: skip
    console.print(table)
    for void in part["void"]:
        console.print(f"Void, {void['gate']}: {void['why']}")


@claims.command
def look(method: str, *, seeds: int = 2, first: int = 0, runs: Path = Path("runs"), workers: int | None = None) -> None:
    """Train both arms of a claim on a few seeds before it is planned: does the baseline learn, has the bed room?

    The seeds are below those of verdicts, and nothing is recorded. A claim that was looked at is still open: change its
    bed by what the baseline does, never by whether the method wins.

    Parameters
    ----------
    method
        Whose claim (`etude claims`), or your own as for `etude claims plan`.
    seeds
        Pairs of runs.
    first
        The first seed.
    runs
        Where the runs are kept; those that exist are used again.
    workers
        Runs at a time; all cores by default.
    """
    import time

    from rich.console import Console
    from rich.table import Table

    from etude.evaluation.gates import Gate
    from etude.runs.looks import look as looked

    began = time.monotonic()
    results, verdict = looked(method, seeds, first=first, runs=runs, workers=workers)
    console, table = Console(highlight=False, markup=False), Table(box=None, pad_edge=False)
    for column in ("measure", "start", "baseline", "method", "matters"):
        table.add_column(column, justify="left" if column == "measure" else "right")
    for name, found in verdict.findings.items():
        means = ("" if (x := of.get(name)) is None else f"{sum(x) / len(x):.4g}"
                 for of in (results.start, results.baseline, results.arm))  # fmt: skip
        table.add_row(name, *means, f"{found.smallest:.3g}")
    console.print(table)
    for void in verdict.voids:
        if void.gate is not Gate.RESTS:  # nothing is held yet
            console.print(f"Would be void, {void.gate}: {void.sentence}", soft_wrap=True)
    few = "One seed decides" if seeds == 1 else f"{seeds} seeds decide"
    console.print(f"{few} nothing. It took {time.monotonic() - began:.0f} s.", soft_wrap=True)


@claims.command
def plan(method: str, *, reason: str = "") -> None:
    """Write what the experiment of a claim will do, to be committed before it is run.

    Parameters
    ----------
    method
        Whose claim (`etude claims`).
    reason
        Why an earlier plan, which has runs, is given up; it is kept with all that came of it.
    """
    from etude.runs.claims import claim_of, folder_of
    from etude.runs.plans import write_plan

    path = write_plan(folder_of(method), method, claim_of(method)[1], reason)
    print(f"{path}: commit it, then `etude claims run {method}`.")


@claims.command
def run(
    *methods: str,
    all_: Annotated[bool, Parameter(name="--all", negative=())] = False,
    again: Annotated[bool, Parameter(negative=())] = False,
    runs: Path = Path("runs"),
    workers: int | None = None,
    on: str = "local",
) -> None:
    """Do what plans say, pair by pair until it is decided, and write the verdicts.

    What was stopped goes on. A claim that cannot be run is said at the end, and does not keep others from it.

    Parameters
    ----------
    methods
        Whose claims.
    all_
        Every claim that has a plan and no verdict that follows from it.
    again
        Run all of a stale one anew; what was recorded is put aside.
    runs
        Where the runs are kept; those that exist are used again.
    workers
        Runs at a time; all cores by default, of the cluster with --on ray.
    on
        Where runs are done: local; ray, on all machines of a Ray cluster (RAY_ADDRESS, or as ray@HOST:PORT), which all
        see --runs.
    """
    from etude.core.errors import EtudeError
    from etude.runs.claims import claim_of, run_claim, waiting
    from etude.runs.spread import workers_of

    if all_ == bool(methods):
        raise ConfigError("Say whose claims to run, as in `etude claims run dapo gpg`, or --all.")
    failed: list[str] = []
    with workers_of(on, workers) as those:
        for name in waiting() if all_ else methods:
            try:
                record = run_claim(name, runs=runs, workers=those, again=again)
            except EtudeError as error:
                if len(methods) == 1:
                    raise
                failed.append(f"{name}: {error}")
                continue
            difference, pairs = _figures(record, claim_of(name)[1])
            print(f"{name}: {record['verdict']}. {record['statement']}")
            print(f"  {difference} times the smallest difference that matters, {pairs} pairs")
    if failed:
        raise ConfigError("Not all could be run.\n" + "\n".join(failed))


@claims.command
def check(*methods: str) -> None:
    """Derive verdicts again from their runs, and say which are older than the code.

    Parameters
    ----------
    methods
        Whose claims; all by default.
    """
    from etude.runs.claims import check as wrong
    from etude.runs.claims import claims as known

    found = [sentence for name in methods or known() for sentence in wrong(name)]
    print("\n".join(found) or "Every verdict follows from its runs, and none is older than the code.")
    if found:
        raise SystemExit(1)
