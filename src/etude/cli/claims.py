"""`etude claims`: what papers say, checked here."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

claims = App(name="claims", help="The table of claims and their verdicts; `etude claims run ID` checks one.")


@claims.default
def list_claims() -> None:
    """Every method's claim with its recorded verdict."""
    from rich.console import Console
    from rich.table import Table

    from etude.core.registry import files, get_method
    from etude.runs.claims import recorded, verdict_of

    table = Table(box=None, pad_edge=False)
    for name in ("method", "claim", "verdict", "difference"):
        table.add_column(name, no_wrap=name in ("method", "verdict"))
    for name in files("methods"):
        claim, record = get_method(name).claim, recorded(name)
        if claim is not None:
            spread = record.get("difference") if record else None
            text = f"{spread['value']:+.3f} ({spread['low']:+.3f} to {spread['high']:+.3f})" if spread else ""
            table.add_row(name, claim.statement, verdict_of(name) or "not run", text)
    Console().print(table)


@claims.command
def run(
    method: str, *, out: Path = Path("claims"), runs: Path = Path("runs/claims"), workers: int | None = None
) -> None:
    """Do the experiment of a claim and write claims/ID.json.

    Parameters
    ----------
    method
        Whose claim.
    out
        Where the verdict goes.
    runs
        Where the runs are kept; those that exist are used again.
    workers
        Runs at a time; all cores by default.
    """
    from etude.runs.claims import run_claim

    record = run_claim(method, out=out, runs=runs, workers=workers)
    print(f"{method}: {record['verdict']}. {record['statement']}")
    print(f"  {record['summary']}")
    print(f"  {record['path']}")
