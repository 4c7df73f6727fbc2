"""What a scheduler asks of workers (orders), and what they answer (reports): plain values, that any wire can carry.

Every order has a ticket. It is answered by one report with that ticket, or by that of its worker's death; whatever
comes for a ticket that is not waited for any more is counted and left aside. So an order can be given again.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Sample(NamedTuple):
    """Make a row. Answered with its fields.

    Args:
        row, group: its numbers; what is drawn for it is addressed by them, so another worker would say the same.
        step: the training step that it is gathered for.
        trained: training steps that the worker's weights have had.
    """

    ticket: int
    worker: str
    row: int
    group: int
    step: int
    trained: int


class Score(NamedTuple):
    """Compute what a task adds to a row. Answered with those fields."""

    ticket: int
    worker: str
    task: str
    row: int
    values: dict[str, Any]


class Learn(NamedTuple):
    """Take a training step on rows. Answered with the `fingerprint` of the weights that came of it.

    Shapes: rows, groups [n]; values {field: [n]}.
    """

    ticket: int
    worker: str
    step: int
    rows: list[int]
    groups: list[int]
    values: dict[str, list[Any]]


class Load(NamedTuple):
    """Begin to use weights, for the rows that are begun from then on. Answered with their `trained` and `fingerprint`.

    Args:
        trained: training steps that they have had.
        fingerprint: of the weights; what comes with another is refused.
        launch: the worker is not there, or no longer: start it first.
    """

    ticket: int
    worker: str
    trained: int
    fingerprint: str
    launch: bool


class Cancel(NamedTuple):
    """Leave an order; nobody reads its answer. Not answered itself."""

    ticket: int
    worker: str


class Done(NamedTuple):
    """An order was carried out."""

    ticket: int
    values: dict[str, Any]


class Failed(NamedTuple):
    """An order could not be carried out, and its worker goes on."""

    ticket: int
    why: str


class Died(NamedTuple):
    """A worker ended by itself, and all that it was doing with it.

    Whoever is told to launch a worker ends what is left of it first, and reports no death for that.
    """

    worker: str
    why: str = ""


Order = Sample | Score | Learn | Load | Cancel
Report = Done | Failed | Died

_KINDS = {kind.__name__: kind for kind in (Sample, Score, Learn, Load, Done, Failed, Died)}


def to_json(message: Order | Report) -> list[Any]:
    """An order or a report as a list: its kind, then its fields."""
    return [type(message).__name__, *message]


def from_json(message: list[Any]) -> Order | Report:
    """Undo `to_json`."""
    kind, *fields = message
    return _KINDS[kind](*fields)
