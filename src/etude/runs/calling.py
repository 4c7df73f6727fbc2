"""Callbacks of a run, from names or objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from etude.core.errors import EtudeError
from etude.core.registry import load_attribute
from etude.runtime.callbacks import checked, name_of


def made(given: str | Sequence[Any]) -> list[Any]:
    """Callbacks as they will be called, from objects, classes, 'my.py:Slack' and 'module:Slack'.

    Raises: EtudeError for a name that is not there, and for what nothing would call.
    """
    listed = [given] if isinstance(given, str) else list(given)
    return [checked(load_attribute(each) if isinstance(each, str) else each) for each in listed]


def names(given: str | Sequence[Any]) -> tuple[str, ...]:
    """What a run records of them: names as they were given, and of objects '<Slack>'."""
    listed = [given] if isinstance(given, str) else list(given)
    return tuple(each if isinstance(each, str) else f"<{name_of(each)}>" for each in listed)


def lasting(recorded: Sequence[str]) -> list[str]:
    """Names that are found again from another folder: the path of a file is made absolute."""
    pairs = [name.rpartition(":") for name in recorded]
    return [f"{Path(a).resolve()}:{b}" if a.endswith(".py") else name for name, (a, _, b) in zip(recorded, pairs)]


def again(recorded: Sequence[str], say: Callable[[str], None]) -> list[Any]:
    """Those of a run that goes on. One that cannot be had is named: no number of the run depends on it."""
    found: list[Any] = []
    for name in recorded:
        why = "it only lived in Python" if name.startswith("<") else ""
        try:
            found += [] if why else made(name)
        except EtudeError as error:
            why = str(error)
        if why:
            say(f"The run goes on without its callback {name} ({why}); callbacks can be given with --resume too.")
    return found
