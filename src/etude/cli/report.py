"""`etude report`: the page of a run."""

from __future__ import annotations

from pathlib import Path


def report(folder: Path) -> None:
    """Write report.html of a run, finished or not, and print where it is."""
    from etude.core.errors import RunFolderError
    from etude.evaluation.report import write_report
    from etude.runs.saved import run_world
    from etude.runs.worlds import world_of

    if not (folder / "method.json").is_file():
        raise RunFolderError(f"{folder} is not a run folder: it has no method.json.")
    print(write_report(folder, world_of(run_world(folder)).WORDING))
