"""Where a role is played, as one word says it."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

from etude.core.errors import ConfigError

Executors = Literal["local", "processes", "ray", "hogwild"]
EXECUTORS: tuple[Executors, ...] = get_args(Executors)


class Place(NamedTuple):
    """What `--on` says: the executor, how many ranks, and the head of a Ray cluster ('' where it says none)."""

    executor: Executors
    ranks: int = 1
    address: str = ""


def place_of(text: str) -> Place:
    """'local', 'processes', 'ray', 'hogwild', or one of them with a number of samplers or workers.

    >>> place_of("processes:2")
    Place(executor='processes', ranks=2, address='')
    >>> place_of("ray:8@10.0.0.1:6379")
    Place(executor='ray', ranks=8, address='10.0.0.1:6379')

    Raises: ConfigError for anything else.
    """
    before, at, address = text.partition("@")
    name, colon, number = before.partition(":")
    count = int(number) if number.isdecimal() else 0 if colon else 1
    for executor in EXECUTORS:
        if name == executor and count >= 1 and bool(address) == bool(at) and (not at or executor == "ray"):
            return Place(executor, count, address)
    raise ConfigError(
        "--on must be local, processes, ray, hogwild, or one of them with the number of samplers or workers, as in "
        f"processes:2, ray with the head of its cluster, as in ray:2@HOST:PORT; got {text!r}."
    )
