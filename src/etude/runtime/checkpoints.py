"""Checkpoints that are either complete or not there.

    checkpoints/tmp-40/        written, every file fsynced
    checkpoints/tmp-40/COMPLETE    last: size and SHA-256 of every file; then the folder is fsynced,
    checkpoints/step-40/       renamed, and the parent fsynced

A kill at any moment leaves either a `tmp-*`, removed when the run is next opened, or a whole `step-*`. Tensors are
safetensors and the rest is JSON: reading a checkpoint never runs code. A file that is as it was in the checkpoint
before may be a second name of that one (`link`), and is not hashed again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from etude.core.errors import CheckpointError, ConfigError
from etude.runtime import disk

if TYPE_CHECKING:
    from torch import Tensor

COMPLETE = "COMPLETE"
STORED = "replay"
"""Folder of a checkpoint with what a run learns from: only who goes on with the run reads it."""
MAX_JSON = 1 << 30
"""Largest JSON file that is read, in bytes."""


def write(root: Path, step: int, save: Callable[[Path], None]) -> Path:
    """Write the checkpoint of a step: `save` fills the folder it is given. Returns `root/step-N`.

    Raises CheckpointError if that step has one already: a checkpoint is never overwritten.
    """
    temporary, target = root / f"tmp-{step}", root / f"step-{step}"
    if target.exists():
        raise CheckpointError(f"{target} exists already; a checkpoint is never overwritten.")
    disk.remove(temporary)
    disk.make_folder(temporary)
    try:
        save(temporary)
        _seal(temporary, step)
        disk.rename(temporary, target)
    except Exception:  # most likely the disk is full: give back what this attempt took
        disk.remove(temporary)
        raise
    disk.sync(root)
    return target


def _seal(folder: Path, step: int) -> None:
    """Bring every file to the device, and only then say that they are all there."""
    listed, linked = {}, _linked(folder)
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = path.relative_to(folder).as_posix()
        if name not in linked:
            disk.sync(path)
        listed[name] = linked.get(name) or {"size": path.stat().st_size, "sha256": _sha256(path)}
    for inner in sorted(p for p in folder.rglob("*") if p.is_dir()):
        disk.sync(inner)
    save_json(folder / COMPLETE, {"step": step, "files": listed})
    disk.sync(folder / COMPLETE)
    disk.sync(folder)


def _linked(folder: Path) -> dict[str, Any]:
    """What COMPLETE of the checkpoint before says of the files that this one shares with it."""
    older = before(folder)
    if older is None:
        return {}
    try:
        listed = load_json(older / COMPLETE)["files"]
        return {name: entry for name, entry in listed.items() if _same(older / name, folder / name)}
    except (CheckpointError, KeyError, TypeError, AttributeError):
        return {}


def _same(one: Path, other: Path) -> bool:
    return one.is_file() and other.is_file() and one.samefile(other)


def newest(root: Path, stored: bool = True) -> tuple[Path, list[str]]:
    """The newest checkpoint that is whole, and a sentence about each newer one that is damaged.

    Args:
        stored: whether what it learned from (`STORED`) is to be there too: not for who only acts.

    Raises CheckpointError if there is none: a run never starts over silently.
    """
    damage: list[str] = []
    for path in reversed(steps(root)):
        checkpoint = verify(path, stored)
        if not checkpoint:
            back = f"Going back to {path.name}, the newest checkpoint that is whole."
            return path, [*damage, back] if damage else []
        damage.append(f"{path} is damaged: {checkpoint}.")
    if damage:
        raise CheckpointError(f"No checkpoint in {root} is whole. {' '.join(damage)} Restore one from a copy.")
    raise CheckpointError(f"There is no checkpoint in {root}.")


def newest_model(name: str) -> str:
    """A model by its name; of a run the folder of its newest whole checkpoint as it is now, since a run may go on."""
    runs = Path(name) / "checkpoints"
    return str(newest(runs)[0] / "model") if runs.is_dir() else name


def check_shapes(model: str, own: Mapping[str, Tensor], other: Mapping[str, Tensor], whose: str) -> None:
    """Raise ConfigError for a model whose weights have other names or shapes than those that it is averaged with."""
    if wrong := [k for k, v in own.items() if k not in other or other[k].shape != v.shape]:
        raise ConfigError(
            f"{model!r} has another shape than {whose} ({wrong[0]}), so that they have no average: name models of the "
            "same kind."
        )


def verify(path: Path, stored: bool = True) -> str:
    """What is wrong with a checkpoint, naming the file; empty if every byte is as it was written.

    Args:
        stored: whether to look at the files of `STORED` too.
    """
    try:
        record = load_json(path / COMPLETE)
        listed = [(inside(name), int(v["size"]), str(v["sha256"])) for name, v in record["files"].items()]
    except (CheckpointError, KeyError, TypeError, ValueError, AttributeError):
        return f"{COMPLETE} is missing or unreadable"
    if record.get("step") != step_of(path):
        return f"{COMPLETE} belongs to step {record.get('step')}"
    read = (entry for entry in listed if stored or PurePosixPath(entry[0]).parts[0] != STORED)
    return next(filter(None, (_fault(path, *entry) for entry in read)), "")


def inside(name: str) -> str:
    """The name of a file, if it cannot lead out of its folder. Raises ValueError."""
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        raise ValueError(f"{name} lies outside the checkpoint")
    return name


def _fault(folder: Path, name: str, size: int, sha256: str) -> str:
    path = folder / name
    if not path.is_file():
        return f"{name} is missing"
    if path.stat().st_size != size:
        return f"{name} has {path.stat().st_size} bytes instead of {size}"
    return "" if _sha256(path) == sha256 else f"the SHA-256 of {name} is not the one recorded"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def steps(root: Path) -> list[Path]:
    """Every `step-N` folder, oldest first, whole or not."""
    return sorted(_named(root, "step"), key=step_of)


def before(folder: Path) -> Path | None:
    """The newest checkpoint beside one that is being written."""
    return next(reversed(steps(folder.parent)), None)


def step_of(path: Path) -> int:
    """The N of `step-N`."""
    return int(path.name.rpartition("-")[2])


def _named(root: Path, prefix: str) -> Iterator[Path]:
    if root.is_dir():
        yield from (p for p in root.iterdir() if re.fullmatch(rf"{prefix}-\d+", p.name) and p.is_dir())


def prune(root: Path, keep: int, best: int | None = None) -> None:
    """Remove all but the newest `keep` checkpoints, and that of step `best`.

    Each under another name first, so that none is ever half there.
    """
    for path in steps(root)[: -max(keep, 1)]:
        if step_of(path) == best:
            continue
        doomed = root / f"tmp-{step_of(path)}"
        disk.rename(path, doomed)
        disk.remove(doomed)


def tidy(root: Path) -> None:
    """Remove what a killed run left half written."""
    for path in _named(root, "tmp"):
        disk.remove(path)


def set_aside(root: Path, after: int) -> None:
    """Rename checkpoints later than step `after` to `damaged-N`: the run goes on from before them."""
    for path in steps(root):
        if step_of(path) > after:
            aside = root / f"damaged-{step_of(path)}"
            disk.remove(aside)
            disk.rename(path, aside)


# What goes into one


class Mark(NamedTuple):
    """What a file is known by: it changes with every change of its content, but not with its name."""

    inode: int
    changed: int
    size: int

    @classmethod
    def of(cls, path: Path) -> Mark:
        """Raises OSError if the file is not there."""
        found = path.stat()
        return cls(found.st_ino, found.st_mtime_ns, found.st_size)


def link(source: Path, target: Path, mark: Mark) -> bool:
    """Give a file of an earlier checkpoint a second name; False if it is not as it was marked, or cannot have one."""
    try:
        if Mark.of(source) != mark:
            return False
        disk.link(source, target)
    except OSError:
        return False
    return True


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors to a safetensors file, exactly; tensors that share memory are written apart."""
    seen: set[int] = set()

    def own(x: Tensor) -> Tensor:
        x = x.detach().cpu().contiguous()
        storage = x.untyped_storage()
        if storage.data_ptr() in seen or storage.nbytes() != x.nbytes:
            return x.clone()
        seen.add(storage.data_ptr())
        return x

    disk.write_tensors(path, {name: own(x) for name, x in tensors.items()})


def load_tensors(path: Path) -> dict[str, Tensor]:
    """What `save_tensors` wrote. Raises CheckpointError if the file is not exactly as large as its header says."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read as safetensors: {error}.") from error


def save_json(path: Path, value: object) -> None:
    """Write JSON values exactly: NaN and infinities come back as they were, numpy and torch scalars as numbers.

    Order is kept. Raises TypeError for what JSON cannot hold.
    """
    disk.write_file(path, json.dumps(value, indent=1, default=_number).encode())


def _number(value: object) -> Any:
    if not hasattr(value, "tolist"):
        raise TypeError(f"a checkpoint holds JSON values and tensors, not {type(value).__name__}")
    return value.tolist()


def load_json(path: Path) -> Any:
    """What `save_json` wrote. Raises CheckpointError if the file is missing, too large, or not JSON."""
    try:
        if path.stat().st_size > MAX_JSON:
            raise CheckpointError(f"{path} has {path.stat().st_size} bytes; more than {MAX_JSON} are not read.")
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}.") from error
