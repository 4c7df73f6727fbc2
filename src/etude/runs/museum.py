"""The museum of silent failures: its exhibits, `museum/*.py` of a checkout, and what came of each."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable
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
