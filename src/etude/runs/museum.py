"""The museum of silent failures: its exhibits, `museum/*.py` of a checkout, what came of each, and its page."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from etude.core.errors import ConfigError, UnknownNameError
from etude.core.registry import ROOT
from etude.evaluation.exhibits import KINDS, SILENT, STOPPED, Exhibit, Outcome, observe

PLACE = ROOT.parent.parent / "museum"
"""Beside the source: an installed package has none."""
PACKAGE = "etude_museum"
"""What the folder is imported as."""


@dataclass(frozen=True, kw_only=True)
class Visit:
    """An exhibit with its fault, and without.

    Args:
        found: with the fault.
        clean: what the run said without it; empty as it should be.
    """

    exhibit: Exhibit
    found: Outcome
    clean: tuple[str, ...]

    @property
    def well(self) -> bool:
        """Whether the fault was answered, or is listed as missed, and nothing was said without it."""
        return (self.found.verdict != SILENT or bool(self.exhibit.miss)) and not self.clean


@cache
def exhibits() -> dict[str, Exhibit]:
    """Every exhibit by its id, by kind. Raises ConfigError without a checkout, or for an id that two of them have."""
    if not PLACE.is_dir():
        raise ConfigError(
            "The museum is in a checkout of etude and not in the installed package: clone the repository, and run "
            "`etude museum` with the etude that is installed from it (pip install -e .)."
        )
    spec = importlib.util.spec_from_file_location(
        PACKAGE, PLACE / "__init__.py", submodule_search_locations=[str(PLACE)]
    )
    assert spec is not None and spec.loader is not None
    sys.modules[PACKAGE] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, Exhibit] = {}
    for path in sorted(PLACE.glob("*.py")):
        for exhibit in getattr(importlib.import_module(f"{PACKAGE}.{path.stem}"), "exhibits", ()):
            if exhibit.id in found:
                raise ConfigError(f"Two exhibits are called {exhibit.id!r}; {path} has the second.")
            found[exhibit.id] = exhibit
    return {e.id: e for e in sorted(found.values(), key=lambda e: list(KINDS).index(e.kind))}


def chosen(names: Iterable[str]) -> list[Exhibit]:
    """The exhibits of these ids. Raises UnknownNameError for one that there is not."""
    known = exhibits()
    for name in names:
        if name not in known:
            raise UnknownNameError("exhibit", name, known, "`etude museum` lists them.")
    return [known[name] for name in names]


def visit(exhibit: Exhibit) -> Visit:
    """Run an exhibit with its fault and without."""
    clean = observe(exhibit, fault=False)
    said = clean.other if clean.verdict == SILENT else (*clean.other, clean.answer)
    return Visit(exhibit=exhibit, found=observe(exhibit), clean=said)


def counted(visits: Iterable[Visit]) -> dict[str, int]:
    """How often each verdict came."""
    found: dict[str, int] = {}
    for one in visits:
        found[one.found.verdict] = found.get(one.found.verdict, 0) + 1
    return dict(sorted(found.items(), key=lambda entry: entry[0] != STOPPED))


HEAD = """\
# A museum of silent failures

Most faults of reinforcement learning end with exit code 0: the run goes on, the curve looks plausible, the number is
wrong. Each row is such a fault from a public thread. It is brought back into etude by a patch of a few lines
(`museum/` in a checkout), and etude trains for a few steps with it. What came of that is observed, not declared:

- *stopped*: the run ended with a sentence before anything was learned from it;
- *said*: a sentence, and the run went on;
- *visible in a metric*: nothing was said, but a number in `metrics.jsonl` left the band in which it lies otherwise;
- *silent*: none of these up to two steps after the first at which the fault had an effect.

`etude museum run ID` repeats one, `etude museum run --all` all of them, with the same run without the fault, which must
say nothing. Other libraries were not run; where a thread says that a fault has been mended since, it has.

This page is written by `python docs/make_museum.py`."""


def page(visits: Mapping[str, Visit]) -> str:
    """The page of the museum, from what came of its exhibits."""
    counts = ", ".join(f"{n} {verdict}" for verdict, n in counted(visits.values()).items())
    blocks = [HEAD, f"{len(visits)} exhibits: {counts}."]
    for kind, title in KINDS.items():
        rows = [_row(v) for v in visits.values() if v.exhibit.kind == kind]
        if rows:
            blocks.append(f"## {title}")
            blocks.append("\n".join(["| fault | report | etude |", "|---|---|---|", *rows]))
    missed = [v for v in visits.values() if v.found.verdict == SILENT]
    if missed:
        blocks.append("## What etude misses")
        blocks.append("\n".join(f"- `{v.exhibit.id}`: {v.exhibit.miss}" for v in missed))
    return "\n\n".join(blocks) + "\n"


def _row(one: Visit) -> str:
    exhibit, found = one.exhibit, one.found
    answer = f"**{found.verdict}**" + (f": {_plain(found.answer)}" if found.answer else "")
    fault = f"`{exhibit.id}`<br>{_plain(exhibit.says)}<br>*Here:* {_plain(exhibit.mechanism)}"
    report = f"[{exhibit.report.thread}]({exhibit.report.address})<br>{_plain(exhibit.report.title)}"
    return f"| {fault} | {report} | {answer} |"


def _plain(text: str) -> str:
    """Text as it is in a cell of a table."""
    for mark in "\\|*_<`":
        text = text.replace(mark, "\\" + mark if mark != "<" else "&lt;")
    return text
