"""Searches as text: `beam:4`, `best-of:16,guide=verifier`, `tree-search:64,branch=8,guide.samples=2`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from etude.core.edit import part_named, with_field
from etude.core.errors import ConfigError
from etude.core.part import Part, together
from etude.planners.search import Search

FIELD = re.compile(r",(?=[a-z_.]+=)")
"""What separates fields: a comma may be a value, as in `separator=,`."""


def search_of(said: str | Part) -> Search:
    r"""A search by its name, with how much is searched after a colon and other fields after commas.

    `\n` and `\t` in a separator are a line break and a tab.

    Raises: ConfigError, with the nearest names and the range of a value, for what there is not; as the parts do for
        fields that contradict each other.

    >>> search_of("beam:2,branch=3,separator=,")
    Beam(separator=',', step_tokens=64, guide=MeanLikelihood(), width=2, branch=3)
    """
    if isinstance(said, Search):
        return said
    if not isinstance(said, str):
        raise ConfigError(f"search takes text like 'beam:4' or an etude.planners.search.Search, got {said!r}.")
    first, *fields = FIELD.split(said.strip())
    name, colon, amount = first.partition(":")
    with together():
        part = part_named(name, Search, "--search")
        assert isinstance(part, Search)
        for field in ([f"{part.measure}={amount}"] if colon else []) + fields:
            is_separator = field.startswith("separator=")
            text = field.replace("\\n", "\n").replace("\\t", "\t") if is_separator else field
            part = part.replace(separator=text.partition("=")[2]) if is_separator else with_field(part, text)
    check_all(part)
    return part


def check_all(part: Part) -> None:
    """Raise ConfigError where a part, or one inside of it, contradicts itself after its fields were set `together`."""
    for one in _inside(part):
        one.check()


def _inside(part: Part) -> Iterator[Part]:
    yield part
    for value in part.fields().values():
        if isinstance(value, Part):
            yield from _inside(value)
