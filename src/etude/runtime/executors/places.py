"""Where a role is played, as one word says it."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

from etude.core.errors import ConfigError

Executors = Literal["local", "processes", "hogwild"]
EXECUTORS: tuple[Executors, ...] = get_args(Executors)


class Place(NamedTuple):
    """What `--on` says: the executor, and how many ranks."""

    executor: Executors
    ranks: int = 1


def place_of(text: str) -> Place:
    """'local', 'processes', 'hogwild', or one of them with a number of samplers or workers.

    >>> place_of("processes:2")
    Place(executor='processes', ranks=2)

    Raises: ConfigError for anything else.
    """
    name, colon, number = text.partition(":")
    count = int(number) if number.isdecimal() else 0 if colon else 1
    for executor in EXECUTORS:
        if name == executor and count >= 1:
            return Place(executor, count)
    raise ConfigError(
        f"--on must be local, processes, hogwild, or one of them with the number of samplers or workers, as in "
        f"processes:2; got {text!r}."
    )
