"""The rooms of the library: one order, and nothing imports a room above its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import etude
from etude.core import registry
from etude.core.rooms import ROOMS, STRANGERS, level, part_rooms

SOURCE = Path(etude.__file__).parent

KNOWN: dict[tuple[str, str], str] = {}
"""Imports that still point up, (file, module), each with its reason. It may only become shorter."""


def imports(text: str) -> Iterator[str]:
    """Every module of the library that a file imports, in functions too, but not what is only for type checkers."""
    nodes: list[ast.AST] = [ast.parse(text)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            nodes.extend(node.orelse)
            continue
        nodes.extend(n for n in ast.iter_child_nodes(node) if not isinstance(n, ast.expr))
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.split(".")[0] == "etude")
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are written in full"
            if node.module == "etude":
                yield from (f"etude.{a.name}" for a in node.names)
            elif str(node.module).startswith("etude."):
                yield str(node.module)


@cache
def imported(path: Path) -> frozenset[str]:
    """Every module of the library that this file imports."""
    return frozenset(imports(path.read_text(encoding="utf-8")))


def points_up(room: str, module: str) -> bool:
    """Whether a file in this room may not import the module: one above, a stranger, or the verbs of the package."""
    _, _, path = module.partition(".")
    other = path.split(".")[0]
    if not (SOURCE / other).is_dir() or not other:
        return level(room) < level("cli")  # `import etude`, or one of its verbs
    return level(other) > level(room) or {room, other} == STRANGERS


def upward() -> set[tuple[str, str]]:
    files = [(path.relative_to(SOURCE).as_posix(), path) for path in SOURCE.glob("*/**/*.py")]
    return {
        (name, module) for name, path in files for module in imported(path) if points_up(name.split("/")[0], module)
    }


@pytest.mark.slow
def test_nothing_imports_a_room_above_its_own() -> None:
    assert upward() == set(KNOWN)


def test_every_folder_is_a_room() -> None:
    folders = {p.name for p in SOURCE.iterdir() if any(p.glob("**/*.py"))}
    rooms = [room for rooms in ROOMS for room in rooms]
    assert folders <= set(rooms)
    assert len(rooms) == len(set(rooms))


@pytest.mark.parametrize(
    ("room", "text", "up"),
    [
        ("core", "from etude.core.part import Part", False),
        ("core", "import torch", False),
        ("core", "from etude.tasks import resolve_task", True),
        ("core", "def f():\n    def g():\n        import etude.runs.training", True),
        ("core", "if TYPE_CHECKING:\n    from etude.loops.language import LanguageLoop", False),
        ("core", "if TYPE_CHECKING:\n    pass\nelse:\n    from etude.loops.language import LanguageLoop", True),
        ("core", "import etude", True),
        ("runs", "from etude import train", True),
        ("cli", "from etude import __version__", False),
        ("advantages", "from etude.filters.informative import InformativeGroups", False),
        ("policies", "from etude import experience", True),
        ("loops", "from etude.methods.rlvr.grpo import grpo", True),
        ("methods", "from etude.loops.language import LanguageLoop", True),
        ("methods", "from etude.methods.rlvr.grpo import grpo", False),
        ("evaluation", "from etude.loops.language import LanguageLoop", False),
    ],
)
def test_what_points_up(room: str, text: str, up: bool) -> None:
    assert any(points_up(room, module) for module in imports(text)) is up


@pytest.mark.slow
def test_every_file_that_fills_a_slot_is_found() -> None:
    """`import_parts` reads the rooms, so that no list of folders has to be kept."""
    read = {path for room in part_rooms() for path in registry.part_files(room)}
    below = [SOURCE / room for rooms in ROOMS[: level("methods")] for room in rooms if room != "core"]
    files = [path for folder in below for path in folder.rglob("*.py")]
    slots = {f"etude.core.{name}" for name in ("slots", "step_slots", "stage_slots", "player_slots")}
    filling = {path for path in files if slots & imported(path)}
    assert len(filling) > 40
    assert filling - read <= {SOURCE / "policies" / "formulas.py"}  # reads a Context; its home is derl
