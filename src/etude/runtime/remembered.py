"""Numbers that take long to compute and depend on nothing but their key, kept between runs.

They lie in `$ETUDE_CACHE`, else in `etude` below `$XDG_CACHE_HOME` or `~/.cache`; where `ETUDE_CACHE` is set to
nothing, or nothing can be written, they are computed each time. A file that is damaged is made again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from etude.runtime import disk

KEPT = 100
"""Files of a kind; the oldest go."""


def home() -> Path | None:
    """The folder, or None if nothing is to be kept."""
    named = os.environ.get("ETUDE_CACHE")
    if named is not None:
        return Path(named) if named else None
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "etude"
    except RuntimeError:  # nobody's home
        return None


def numbers(kind: str, key: str, count: int, make: Callable[[], Sequence[int]]) -> list[int]:
    """`count` whole numbers below 2^31: those that were kept under the key, else what `make` returns.

    Args:
        kind: a name for a folder.
        key: hexadecimal; must say all that the numbers depend on.
    """
    base = home()
    if base is None:
        return list(make())
    path = base / kind / f"{key}.safetensors"
    if (found := _read(path, count)) is not None:
        return found
    made = list(make())
    _write(path, made)
    return made


def _read(path: Path, count: int) -> list[int] | None:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        found: list[int] = load_file(path)["numbers"].tolist()
        path.touch()
    except (OSError, SafetensorError, KeyError):
        return None
    return found if len(found) == count else None


def _write(path: Path, made: Sequence[int]) -> None:
    import numpy
    from safetensors.numpy import save

    try:
        disk.make_folder(path.parent)
        disk.replace_file(path, save({"numbers": numpy.asarray(made, numpy.int32)}))
        for old in sorted(path.parent.glob("*.safetensors"), key=lambda p: p.stat().st_mtime)[:-KEPT]:
            old.unlink(missing_ok=True)
    except OSError:
        return  # it is computed again next time
