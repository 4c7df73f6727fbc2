"""`etude report`: the page of a run, or of several beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from etude.core.errors import ConfigError


def report(
    *folders: Path,
    compare: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    out: Path | None = None,
) -> None:
    """Write report.html of a run, finished or not, and print where it is.

    Parameters
    ----------
    folders
        A run; with --compare two or more of them.
    compare
        One page of all of them: final numbers with intervals, what differs, curves in the same axes.
    out
        That page; by default comparison.html beside the first run.
    """
    from etude.core.errors import RunFolderError
    from etude.evaluation.report import write_report
    from etude.evaluation.report_compare import write_comparison
    from etude.runs.saved import run_world
    from etude.runs.worlds import world_of

    if compare:
        places = [_run(f) for f in folders]
        print(write_comparison(places, out or (places[0].parent if places else Path()) / "comparison.html"))
        return
    if out is not None:
        raise ConfigError("--out says where the page of --compare goes; the page of a run is in its folder.")
    if len(folders) != 1:
        raise ConfigError(f"A report is of one run, got {len(folders)}; for one page of several, say --compare.")
    (folder,) = folders
    if not (folder / "method.json").is_file():
        raise RunFolderError(f"{folder} is not a run folder: it has no method.json.")
    print(write_report(folder, world_of(run_world(folder)).WORDING))


def _run(folder: Path) -> Path:
    """A run's folder by any way to write it."""
    return folder if folder.name not in ("", "..") else folder.resolve()
