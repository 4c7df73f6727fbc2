"""A part returns what it computed: no file of parts writes on the batch that it was given."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import etude

ROOMS = (
    "advantages", "curricula", "filters", "learners", "methods", "objectives", "optimizers", "references",
    "regularizers", "rewards", "stages", "token_weights",
)  # fmt: skip
"""Folders that hold parts and no loop; what collects rollouts makes its batch, and may fill it in."""
WRITES = {"update", "setdefault", "pop", "clear"}
SOURCE = Path(etude.__file__).parent


def written(text: str) -> Iterator[str]:
    """Fields of a `batch` that the code assigns to, or changes in place by one of torch's functions."""
    for node in ast.walk(ast.parse(text)):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = [each for target in node.targets for each in getattr(target, "elts", [target])]
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            targets = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            targets = [node.func.value] if name in WRITES or (name.endswith("_") and name[0] != "_") else []
        for target in targets:
            while isinstance(target, ast.Subscript):
                target = target.value
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "batch":
                yield target.attr


@pytest.mark.parametrize("room", ROOMS)
def test_parts_leave_the_batch_alone(room: str) -> None:
    found = {
        f"{path.relative_to(SOURCE)}: batch.{field}"
        for path in (SOURCE / room).glob("**/*.py")
        for field in written(path.read_text(encoding="utf-8"))
    }
    assert not found


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        ("batch.returns = a + b", ["returns"]),
        ("batch.rewards[:, 0] = 1", ["rewards"]),
        ("batch.rewards += bonus", ["rewards"]),
        ("batch.values.clamp_(min=0)", ["values"]),
        ("batch.offers['mean'] = x", ["offers"]),
        ("x, batch.final = y", ["final"]),
        ("rows = batch.replace(final=x)", []),
        ("found[batch.group] = 1", []),
    ],
)
def test_what_counts_as_writing(code: str, fields: list[str]) -> None:
    assert sorted(written(code)) == fields
