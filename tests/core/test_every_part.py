"""What holds for every part: fields refuse what is outside of their range, docstrings have an example and shapes."""

from __future__ import annotations

import dataclasses
import doctest
import inspect
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest

import etude
from etude.core.errors import ConfigError
from etude.core.fields import describe
from etude.core.part import Part, hints
from etude.tasks import resolve_task
from every_part import every_part

TASKS = [resolve_task(name) for name in etude.tasks()]
"""Loaded, so that they are among the parts whichever tests run."""


def outside(hint: Any) -> Any:
    """A value of the right kind that the hint forbids; None if it forbids none."""
    if get_origin(hint) is Literal:
        return "nonsense"
    if get_origin(hint) is tuple:
        inner = outside(get_args(hint)[0])
        return None if inner is None else (inner,)
    if get_origin(hint) is not Annotated:
        return None
    kind, *limits = get_args(hint)
    for limit in limits:
        for name, away in (("gt", 0), ("ge", -1), ("lt", 0), ("le", 1)):
            bound = getattr(limit, name, None)
            if bound is not None:
                return kind(bound) + away
    return None


def cases() -> Iterator[tuple[type[Part], str, Any]]:
    for cls in every_part().values():
        if any(f.default is f.default_factory is dataclasses.MISSING for f in dataclasses.fields(cls)):  # type: ignore[arg-type]
            continue  # cannot be made from one field
        for field, hint in hints(cls).items():
            inside = [h for h in get_args(hint) if h is not type(None)] if type(None) in get_args(hint) else [hint]
            if (bad := outside(inside[0])) is not None:
                yield cls, field, bad


CASES = list(cases())


@pytest.mark.parametrize("cls, field, bad", CASES, ids=[f"{c.name}.{f}" for c, f, _ in CASES])
def test_what_a_field_forbids_is_refused(cls: type[Part], field: str, bad: Any) -> None:
    expected = f"{cls.__name__}.{field} must be {describe(hints(cls)[field])}, got {bad!r}"
    with pytest.raises(ConfigError, match=re.escape(expected)):
        cls(**{field: bad})


def test_there_are_many() -> None:
    assert len(CASES) > 200


# Docstrings

TENSORS = re.compile(r"\b(Tensor|TokenBatch|TokenLogProbs|Transitions|ActionLogProbs|FlatParameters)\b")
SHAPE = re.compile(r"\[(?:[A-Z](?: [A-Z])?|\.\.\.)(?:, [^\]]+)?\]")


def takes_tensors(cls: type[Part]) -> bool:
    """Whether a function of its own, or of a part that it is one of, reads or makes tensors."""
    functions = [f for base in cls.__mro__ if issubclass(base, Part) and not base.abstract for f in vars(base).values()]
    hints = [str(h) for f in functions if inspect.isfunction(f) for h in f.__annotations__.values()]
    return any(TENSORS.search(h) for h in hints)


@pytest.mark.parametrize("cls", every_part().values(), ids=lambda cls: cls.__name__)
def test_docstrings_have_an_example_with_numbers_and_name_their_shapes(cls: type[Part]) -> None:
    """`tests/docs/test_docstrings.py` runs the examples."""
    pieces = doctest.DocTestParser().parse(vars(cls)["__doc__"])
    examples = [e for e in pieces if isinstance(e, doctest.Example)]
    shown = [e for e in examples if e.want and re.search(r"\d", e.source + e.want)]
    assert shown, f"{cls.__name__} needs an example: `>>>` and what comes out, worked out by hand."
    text = "".join(piece for piece in pieces if isinstance(piece, str))
    assert not takes_tensors(cls) or SHAPE.search(text), f"{cls.__name__} reads tensors: say of which shapes, [B, T]."
