"""Numbers that take long to compute and depend on nothing but their key, kept between runs.

They lie in `$ETUDE_CACHE`, else in `etude` below `$XDG_CACHE_HOME` or `~/.cache`; where `ETUDE_CACHE` is set to
nothing, or nothing can be written, they are computed each time. A file that is damaged is made again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from etude.core.errors import RunFolderError
from etude.runtime import disk

if TYPE_CHECKING:
    import numpy as np

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
    import numpy

    kept = arrays(kind, key).get("numbers")
    if kept is not None and len(kept) == count:
        return [int(n) for n in kept.tolist()]
    made = list(make())
    keep(kind, key, {"numbers": numpy.asarray(made, numpy.int32)})
    return made


def arrays(kind: str, key: str) -> dict[str, np.ndarray]:
    """What was kept under the key; nothing if nothing was, or it is damaged."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    if (base := home()) is None:
        return {}
    path = base / kind / f"{key}.safetensors"
    try:
        found: dict[str, np.ndarray] = load_file(path)
        path.touch()
    except (OSError, SafetensorError):
        return {}
    return found


def keep(kind: str, key: str, made: dict[str, np.ndarray]) -> None:
    """Keep arrays under the key, where that can be done."""
    from safetensors.numpy import save

    if (base := home()) is None:
        return
    path = base / kind / f"{key}.safetensors"
    try:
        disk.make_folder(path.parent)
        disk.replace_file(path, save(made))
        for old in sorted(path.parent.glob("*.safetensors"), key=lambda p: p.stat().st_mtime)[:-KEPT]:
            old.unlink(missing_ok=True)
    except (OSError, RunFolderError):
        return  # it is computed again next time
