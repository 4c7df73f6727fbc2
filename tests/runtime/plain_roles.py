"""A role without a model, for executors: a worker process makes it in no time."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from etude.core.errors import EnvironmentFault, UnknownNameError
from etude.runtime.executors.roles import Dispatch, dispatched


class Adder:
    """Adds what it was given to rows, and leaves word in `folder` of whatever it is asked."""

    def __init__(self, folder: str) -> None:
        self.folder, self.amount = Path(folder), 0

    @dispatched(Dispatch.BROADCAST)
    def give(self, file: str) -> dict[str, Any]:
        self.amount = int(Path(file).read_text())
        self._note("give")
        return {"amount": self.amount}

    @dispatched(Dispatch.SPLIT)
    def add(self, rows: Sequence[int], deadly: Sequence[int] = (), always: bool = False) -> dict[str, Any]:
        """Of the rows that are deadly, one ends the process: the first time that it is met, or always."""
        self._note("add " + ",".join(map(str, rows)))
        for row in {*rows} & {*deadly}:
            word = self.folder / f"met-{row}"
            if always or not word.exists():
                word.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return {"rows": [row + self.amount for row in rows], "process": os.getpid()}

    @dispatched(Dispatch.BROADCAST)
    def who(self) -> int:
        return os.getpid()

    @dispatched(Dispatch.FIRST)
    def first(self, number: int) -> int:
        self._note("first")
        return number

    @dispatched(Dispatch.FIRST)
    def fail(self, how: str) -> None:
        if how == "environment":
            raise EnvironmentFault("It left its space.")
        if how == "name":
            raise UnknownNameError("row", "fiv", ["five"])
        if how == "warn":
            warnings.warn("It is late.", stacklevel=1)
            return
        raise KeyError("x")

    def undeclared(self) -> None:
        """Nobody can ask for it."""

    def _note(self, what: str) -> None:
        with (self.folder / "asked").open("a") as file:
            file.write(what + "\n")
