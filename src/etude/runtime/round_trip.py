"""Whether a checkpoint came back whole: what is saved right after it was read has each of its values again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.runtime import divided
from etude.runtime.checkpoints import COMPLETE, load_json, load_tensors

if TYPE_CHECKING:
    from torch import Tensor

RECORD = "run.json"
"""The run's own file of a checkpoint, which no loop writes."""

GIVEN_UP = ("environment/lost", "environment/failures")
"""Which environments could not go back to where they were; they have said so, and what stands beside this differs."""


def room(folder: Path, checkpoint: Path) -> bool:
    """Whether the disk of a folder has twice what a checkpoint takes."""
    size = sum(p.stat().st_size for p in checkpoint.rglob("*") if p.is_file())
    return shutil.disk_usage(folder).free > 2 * size


def unlike(saved: Path, again: Path) -> str:
    """The first thing in a saved folder that the other one lacks or has otherwise, in words; empty if there is none.

    What only the other one has is no matter: a checkpoint of an older version may say less. A tensor may be divided
    among ranks in one of them, and whole or divided otherwise in the other.
    """
    elsewhere = divided.read(again)
    for path in sorted(p for p in saved.rglob("*") if p.is_file()):
        name = path.relative_to(saved).as_posix()
        other = again / name
        if name in (COMPLETE, RECORD) or divided.FOLDER in path.relative_to(saved).parts[:1]:
            continue
        if not other.is_file():
            return name
        if path.suffix == ".safetensors":
            found = _tensors(path, other, elsewhere)
        elif path.suffix == ".json":
            found = _values(load_json(path), load_json(other))
        else:
            found = "" if path.read_bytes() == other.read_bytes() else "its content"
        if found:
            return f"{found} in {name}"
    return _of_ranks(saved, again, elsewhere)


def _of_ranks(saved: Path, again: Path, elsewhere: Mapping[str, Tensor]) -> str:
    """The name of a tensor of all ranks that is not the same in the other folder, wherever that has it."""
    if not (own := divided.read(saved)):
        return ""
    there = {k: v for file in sorted(again.glob("*.safetensors")) for k, v in load_tensors(file).items()}
    there.update(elsewhere)
    lost = (name for name, tensor in own.items() if name not in there or _differ(tensor, there[name]))
    return next((f"{name} in {divided.FOLDER}" for name in lost), "")


def _differ(one: Tensor, two: Tensor) -> bool:
    import torch

    return one.dtype != two.dtype or not torch.equal(_bits(one), _bits(two))


def _tensors(path: Path, other: Path, elsewhere: Mapping[str, Tensor]) -> str:
    """The name of a tensor that is not the same; one after the other, so that few are in memory."""
    from safetensors import safe_open

    with safe_open(path, "pt") as one, safe_open(other, "pt") as two:
        own = set(two.keys())
        there = own | elsewhere.keys()

        def differs(name: str) -> bool:
            return _differ(one.get_tensor(name), two.get_tensor(name) if name in own else elsewhere[name])

        names = list(one.keys())
        given_up = {n.rpartition("/")[0] for n in names if n.endswith(GIVEN_UP) and n in there and differs(n)}
        for name in names:
            if name not in there or (name.rpartition("/")[0] not in given_up and differs(name)):
                return str(name)
    return ""


def _bits(tensor: Any) -> Any:
    """A tensor as bytes, so that NaN equals itself."""
    import torch

    return tensor.contiguous().flatten().view(torch.uint8)


def _values(one: Any, two: Any, name: str = "") -> str:
    """Where two JSON values differ, as a path; what only the second has is no matter."""
    if isinstance(one, dict) and isinstance(two, dict):
        for key, value in one.items():
            where = f"{name}.{key}" if name else key
            if key not in two:
                return where
            if found := _values(value, two[key], where):
                return found
        return ""
    if isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        return next((f for i, (a, b) in enumerate(zip(one, two)) if (f := _values(a, b, f"{name}[{i}]"))), "")
    return "" if json.dumps(one) == json.dumps(two) else name or "its content"
