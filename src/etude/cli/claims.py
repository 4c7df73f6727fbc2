"""`etude claims`: what papers say, checked here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from etude.core.errors import ConfigError

claims = App(name="claims", help="What papers say and what came out here; `plan`, `run` and `check` take their names.")


@claims.default
def list_claims() -> None:
    """Every claim with its verdict, and below it the sentence and what it was checked on.

    The difference is in units of the smallest that matters: within 1 is equivalent.
    """
    from rich.console import Console
    from rich.padding import Padding

    from etude.runs.claims import claims as known
    from etude.runs.claims import recorded, verdict_of

    console = Console(highlight=False)
    for name, method in known().items():
        if method.claim is not None:
            difference, pairs = _figures(recorded(name))
            found = f"{difference} in {pairs} pairs" if pairs else ""
            console.print(f"{name:<24}{verdict_of(name) or 'not run':<26}{found}", style="bold", markup=False)
            where = method.claim.bed or method.claim.setting or method.claim.task
            console.print(Padding(f"{method.claim.statement} ({where})", (0, 0, 0, 4)), markup=False)


def _figures(record: dict[str, Any] | None) -> tuple[str, str]:
    """The first measure's difference with its interval, and how many pairs it rests on."""
    if record is None:
        return "", ""
    from etude.runs.claims import deciding, units

    measures = deciding(record)["measures"]
    first = next(iter(measures.values()))
    value, low, high = units(first)
    return f"{value:+.1f} ({low:+.1f} to {high:+.1f})", str(first["pairs"])


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
    runs: Path = Path("runs"),
    workers: int | None = None,
) -> None:
    """Do what plans say, pair by pair until it is decided, and write the verdicts.

    What was stopped goes on. A claim that cannot be run is said at the end, and does not keep others from it.

    Parameters
    ----------
    methods
        Whose claims.
    all_
        Every claim that has a plan and no verdict that follows from it.
    runs
        Where the runs are kept; those that exist are used again.
    workers
        Runs at a time; all cores by default.
    """
    from etude.core.errors import EtudeError
    from etude.runs.claims import run_claim, waiting

    if all_ == bool(methods):
        raise ConfigError("Say whose claims to run, as in `etude claims run dapo gpg`, or --all.")
    failed: list[str] = []
    for name in waiting() if all_ else methods:
        try:
            record = run_claim(name, runs=runs, workers=workers)
        except EtudeError as error:
            if len(methods) == 1:
                raise
            failed.append(f"{name}: {error}")
            continue
        difference, pairs = _figures(record)
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
