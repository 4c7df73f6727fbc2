"""What reward functions are tried on: episodes of one turn, and what a loop would tell of them."""

from __future__ import annotations

from etude.core.episodes import Episode, Problem, Segment
from etude.core.slots import Context
from etude.core.streams import Stream


class Task:
    id = "sums"


CONTEXT = Context(Task(), None, Stream(0))


def episodes(*completions: str) -> list[Episode]:
    """One single-turn episode per completion, with problem ids '0', '1', ..."""
    return [
        Episode(
            Problem(str(i), f"p{i}", "a", "easy", {"topic": "sums"}),
            [Segment("user", f"p{i}"), Segment("assistant", c)],
        )
        for i, c in enumerate(completions)
    ]
