"""The rooms of the library, in order: a file imports from its own room, from one beside it and from those below.

`tests/core/test_rooms.py` reads every import, those inside of functions too.
"""

ROOMS: tuple[tuple[str, ...], ...] = (
    ("core",),
    ("runtime",),
    ("advantages", "objectives", "filters", "regularizers", "references", "token_weights"),
    ("optimizers",),
    ("policies",),
    ("learners", "critics"),
    ("rewards",),
    ("curricula",),
    ("experience",),
    ("tasks",),
    ("stages", "planners"),
    ("methods", "loops"),
    ("evaluation",),
    ("experiments", "starts"),
    ("runs",),
    ("cli", "board"),
)
"""From the lowest. Some are still empty."""

STRANGERS = frozenset({"methods", "loops"})
"""Beside each other, but neither imports the other: a loop runs any method of its kind, and a method is only parts."""

WITHOUT_PARTS = frozenset({"core", "runtime", "tasks"})
"""Rooms below the methods that hold no part of a slot."""


def level(room: str) -> int:
    """How high a room is."""
    return next(height for height, rooms in enumerate(ROOMS) if room in rooms)


def part_rooms() -> list[str]:
    """The rooms that hold parts which several methods use."""
    below = ROOMS[: level("methods")]
    return [room for rooms in below for room in rooms if room not in WITHOUT_PARTS]
