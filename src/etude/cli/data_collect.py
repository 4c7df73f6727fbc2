"""`etude data collect`: tasks of software engineering from candidates, by running their tests."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from etude.core.errors import ConfigError

if TYPE_CHECKING:
    from etude.evaluation.task_collection import Candidate


def collect(
    candidates: Path | None = None,
    *,
    out: Path,
    good: int = 100,
    bad: int = 10,
    runs: int = 5,
    seed: int = 0,
    quiet: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
) -> None:
    """Keep the candidates that are tasks, and count why the others are none.

    Tests run before and after each change, in the sandbox, several times. What is kept is a line of JSON for each task,
    which `etude evaluate MODEL --task mini-swe --set task.collected=FILE` asks.

    Parameters
    ----------
    candidates
        JSONL with id, created_at, issue, files, patched, tests, and also changes and licence; by default packages of
        `mini-swe`, with others that are spoilt in one way each, of which it is known what should come.
    out
        The file of tasks.
    good
        How many packages, where none are given.
    bad
        How many are spoilt in each way, where none are given.
    runs
        How often all tests are run before and after a change.
    seed
        Which packages.
    quiet
        Print only the file.
    """
    import json

    from etude.evaluation.seeded_candidates import mistaken, seeded
    from etude.evaluation.task_collection import collect as keep
    from etude.runtime import disk

    if runs < 2:
        raise ConfigError(f"--runs must be at least 2, or nothing can be flaky, got {runs}.")
    listed, wrong = seeded(good, bad, seed) if candidates is None else (_read(candidates), None)
    found = keep(listed, runs)
    lines = [json.dumps({"id": p.id, **p.info}) + "\n" for p in found.kept]
    disk.make_folder(out.absolute().parent)
    disk.replace_file(out, "".join(lines).encode())
    if quiet:
        print(out)
        return
    _show(out, len(listed), len(found.kept), found.counts)
    if wrong is not None:
        others = mistaken([p.id for p in found.kept], dict(found.refused), wrong)
        print(f"Of {len(wrong)} that were spoilt and {good} that were not, {len(others)} were mistaken.", *others)


def _read(path: Path) -> list[Candidate]:
    """Candidates of a file. Raises DataError for a line that is none."""
    from etude.core.errors import DataError
    from etude.evaluation.task_collection import Candidate
    from etude.runtime.jsonl import JsonLines

    known = {field.name for field in dataclasses.fields(Candidate)}
    found = []
    for number, line in enumerate(JsonLines.read(path), 1):
        if missing := {"id", "created_at", "issue", "files", "patched", "tests"} - line.keys():
            raise DataError(f"{path}, line {number}: a candidate has {', '.join(sorted(missing))} too; add what it is.")
        if unknown := line.keys() - known:
            raise DataError(f"{path}, line {number}: a candidate has no {', '.join(sorted(unknown))}; leave it out.")
        found.append(Candidate(**{**line, "tests": tuple(line["tests"])}))
    return found


def _show(out: Path, all_of_them: int, kept: int, counts: dict[str, int]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("candidates")
    table.add_column(str(all_of_them), justify="right")
    for reason, count in counts.items():
        table.add_row(reason, str(count))
    table.add_row("kept", str(kept))
    console = Console(highlight=False)
    console.print(table)
    console.print(f"{out}", markup=False, soft_wrap=True)
