"""Every error that etude raises on purpose, on one page.

Each is a sentence that says what was wrong, where, and what to do. The command line prints the sentence
alone (no traceback) and exits with the class's `exit_code`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class EtudeError(Exception):
    """Base of every error that etude raises on purpose."""

    exit_code = 1
    intact: bool = False
    """Whether the loop that raised it is as it was before its step, so that it can be saved."""


class ConfigError(EtudeError, ValueError):
    """A method, part, field or flag was given something that it cannot be."""

    exit_code = 2


class UnknownNameError(ConfigError):
    """A name that nothing has; the message offers the closest ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        self.kind, self.name = kind, name
        self.nearest = nearest(name, known)
        offer = f" Did you mean {' or '.join(repr(n) for n in self.nearest)}?" if self.nearest else ""
        super().__init__(f"There is no {kind} named {name!r}.{offer}{' ' + hint if hint else ''}")


class DataError(EtudeError, ValueError):
    """A data file that cannot be used; the message names file, line and column."""

    exit_code = 2


class RewardError(EtudeError):
    """A reward raised, hung, or returned something that is not a finite number per completion."""

    completion: str | list[str] | None = None
    """The text that was being scored, or the texts, where that is known."""


class EnvironmentFault(EtudeError):
    """An environment raised, hung, or left its own space."""


class WorkerError(EtudeError):
    """A worker beside the main process ended, or did not answer, too often to go on; the run can be saved."""

    intact = True


class InvariantError(EtudeError):
    """One of the checks that are always on (DESIGN section 7) failed: the numbers cannot be trusted."""


class NonFiniteError(EtudeError):
    """Losses or gradients stayed non-finite for several steps in a row."""

    batch: Any = None
    """The tensors of the last batch, by name, for replay."""


class CheckpointError(EtudeError):
    """A checkpoint that is missing, damaged, or belongs to something else."""


class RunFolderError(EtudeError):
    """A run folder that is in use, already finished, or not a run folder."""

    exit_code = 2


class MissingExtraError(EtudeError, ImportError):
    """A feature whose optional dependency is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs an optional dependency; install it with: pip install 'etude[{extra}]'")


def nearest(name: str, known: Iterable[str], n: int = 3) -> list[str]:
    """The names of `known` closest to `name`, best first."""
    names = sorted(set(known))
    folded = {k.lower().replace("_", "-"): k for k in names}
    close = difflib.get_close_matches(name.lower().replace("_", "-"), list(folded), n=n, cutoff=0.55)
    inside = [k for k in folded if name and name.lower() in k and k not in close]
    return [folded[c] for c in [*close, *inside][:n]]
