"""What a command answered, and the smallest run."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Answer(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """stderr on one line, without frames and line breaks."""
        return " ".join(self.err.replace("│", " ").split())


Cli = Callable[..., Answer]


def tiny(steps: int = 2, evaluate: int = 2) -> tuple[str, ...]:
    """Flags of a run of a fraction of a second."""
    sizes = ("--set", "problems=2", "--set", "experience.size=4")
    return ("--steps", str(steps), "--evaluate", str(evaluate), "--quiet", *sizes)


TINY = tiny()
