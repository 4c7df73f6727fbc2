"""Fingerprints of what a run is made from: data, model folders, models of the hub, the user's own Python.

A file is its SHA-256. Weights beyond 64 MiB are too large to read at every start: of those the size and 64 blocks of
1 MiB are hashed, evenly from the first byte (the header of a safetensors file) to the last. Training moves every
weight, so another checkpoint is always noticed; a few bytes patched by hand between two blocks are not. All other files
are read whole, however large. A folder is its files by name; hidden ones are left out, and folders in it that hold
runs. A model of the hub is its commit.

A Python source is its file and what that imports, and so on, as far as it is the user's own: not Python's, not etude's,
not what is installed in site-packages (whose versions are in `environment.json`). Imports are read from the text, so
one by a computed name is not followed, and nothing runs.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from etude.core.errors import ConfigError
from etude.core.registry import ROOT

BLOCK = 1 << 20
BLOCKS = 64
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
"""Files of which only blocks are hashed where they are larger than all these blocks together."""
MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
INSTALLED = (ROOT, *(Path(sysconfig.get_path(k)).resolve() for k in ("stdlib", "platstdlib", "purelib", "platlib")))
"""Folders whose modules are not the user's own."""


def content(path: Path) -> dict[str, str]:
    """Fingerprint of every file of a folder, by its name in it; of a file alone under ''."""
    if path.is_file():
        return {"": digest(path)}
    names = sorted(p.relative_to(path) for p in path.rglob("*") if p.is_file())
    runs = {n.parts[0] for n in names if n.name == "run.lock"}
    kept = [n for n in names if n.parts[0] not in runs and not any(_hidden(part) for part in n.parts)]
    return {n.as_posix(): digest(path / n) for n in kept}


def _hidden(name: str) -> bool:
    return name.startswith(".") or name == "__pycache__"


KNOWN: dict[tuple[Path, int, int], str] = {}
"""Fingerprints of files that were read anyway, by path, size and time of the last change."""


def know(path: Path, at: os.stat_result, found: str) -> None:
    """Spare `digest` a file that was read whole; `at` is from before."""
    KNOWN[path.resolve(), at.st_size, at.st_mtime_ns] = found


def digest(path: Path) -> str:
    """SHA-256 of a file; of large weights, that of their size and of blocks of them."""
    at = path.stat()
    size = at.st_size
    if (known := KNOWN.get((path.resolve(), size, at.st_mtime_ns))) is not None:
        return known
    with path.open("rb") as file:
        if size <= BLOCK * BLOCKS or path.suffix not in WEIGHTS:
            return hashlib.file_digest(file, "sha256").hexdigest()
        sha = hashlib.sha256(str(size).encode())
        for i in range(BLOCKS):
            file.seek((size - BLOCK) * i // (BLOCKS - 1))
            sha.update(file.read(BLOCK))
    return sha.hexdigest()


def commit(model: str) -> dict[str, str]:
    """The commit of a model of the hub, as it lies in the cache of this machine; empty if it does not."""
    from huggingface_hub import try_to_load_from_cache

    try:
        cached = try_to_load_from_cache(model, "config.json")
    except ValueError:  # it is no name of the hub
        return {}
    return {"commit": Path(cached).parent.name} if isinstance(cached, str) else {}


# Python


def python(text: str) -> tuple[str, Path] | None:
    """Module and file that 'file.py', 'file.py:name' or 'module:name' means; None if that is not the user's own."""
    source = text.rpartition(":")[0] or text
    if source.endswith(".py"):
        file = Path(source)
        return (file.stem, file.resolve()) if file.is_file() else None
    if ":" not in text or not MODULE.fullmatch(source):
        return None
    found = _file(source, [Path.cwd()])
    return (source, found) if found else None


def modules(module: str, file: Path) -> dict[str, Path]:
    """The files of a module of the user's and of those that it imports, by their place below where they are found.

    Raises: ConfigError for two files that would be the same module.
    """
    files: dict[str, Path] = {}
    waiting = [(module, file)]
    while waiting:
        name, path = waiting.pop()
        place = _place(name, path)
        if place in files:
            add(files, place, path)
            continue
        files[place] = path
        roots = [path.parents[place.count("/")], Path.cwd()]
        packages = [] if place == path.name else [name]
        wanted = {p for dotted in (*packages, *_imports(name, path)) for p in _prefixes(dotted)} - {name}
        waiting += [(w, f) for w in sorted(wanted) if (f := _file(w, roots))]
    return files


def add(files: dict[str, Path], place: str, path: Path) -> None:
    """Put a file where it belongs. Raises ConfigError if another one is there."""
    if files.setdefault(place, path) != path:
        raise ConfigError(f"{files[place]} and {path} would be the same module in one run: rename one of them.")


def module_of(place: str) -> str:
    """'nets/mine.py' -> 'nets.mine', 'nets/__init__.py' -> 'nets'."""
    return place.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _place(module: str, file: Path) -> str:
    if file.name == f"{module}.py":  # also where the name has dots
        return file.name
    return module.replace(".", "/") + ("/__init__.py" if file.name == "__init__.py" else ".py")


def _prefixes(dotted: str) -> list[str]:
    """'a.b.c' -> ['a', 'a.b', 'a.b.c']."""
    parts = dotted.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def _imports(module: str, file: Path) -> Iterator[str]:
    """Dotted names that a file may import, wherever the statement stands; none of a file that cannot be read."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return  # importing it will say so
    package = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}".strip(".") for alias in node.names if alias.name != "*")
            yield from [base] if base else []


def _file(dotted: str, roots: list[Path]) -> Path | None:
    """The file of a module of the user's own: where it was imported from, or below `roots` and `sys.path`."""
    if dotted.partition(".")[0] in (*sys.stdlib_module_names, "etude", "__main__"):
        return None
    imported = getattr(sys.modules.get(dotted), "__file__", None)
    if imported and _own(file := Path(imported).resolve()) and file.is_file():
        return file
    stem = dotted.replace(".", "/")
    for root in [*roots, *map(Path, sys.path)]:
        for path in (root / f"{stem}.py", root / stem / "__init__.py"):
            if path.is_file():
                return file if _own(file := path.resolve()) else None
    return None


def _own(path: Path) -> bool:
    installed = {"site-packages", "dist-packages"} & {*path.parts} or any(path.is_relative_to(p) for p in INSTALLED)
    return path.suffix == ".py" and not installed
