"""Where a role is played, as one word says it."""

from __future__ import annotations

from typing import Literal, NamedTuple

from etude.core.errors import ConfigError


class Place(NamedTuple):
    """What `--on` says: the executor, and how many ranks."""

    executor: Literal["local", "processes"]
    ranks: int = 1


def place_of(text: str) -> Place:
    """'local', 'processes', or either with a number of samplers.

    >>> place_of("processes:2")
    Place(executor='processes', ranks=2)

    Raises: ConfigError for anything else.
    """
    name, colon, number = text.partition(":")
    count = int(number) if number.isdecimal() else 0 if colon else 1
    if name not in ("local", "processes") or count < 1:
        raise ConfigError(
            f"--on must be local, processes, or one of them with the number of samplers, as in processes:2; got "
            f"{text!r}."
        )
    return Place("local" if name == "local" else "processes", count)
