"""What ranks that each hold a shard of a model make of it together: whole tensors, and files of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from etude.loops.models import Trained
from etude.runtime import divided
from etude.runtime.ranks import Ranks


def joined(model: Trained, names: Sequence[str]) -> dict[str, Tensor]:
    """Whole what is divided among ranks, of these names; all ranks ask at once."""
    shards, tensors = model.shards(), model.tensors()
    return {name: shards[name].joined(tensors[name]) for name in names}


def write(model: Trained, folder: Path, names: Sequence[str], ranks: Ranks) -> None:
    """Write a rank's rows of these tensors into a checkpoint."""
    tensors = model.tensors()
    divided.write(folder, ranks.rank, ranks.count, {name: tensors[name] for name in names})


def held(model: Trained) -> dict[str, Tensor]:
    """The weights that the first rank has whole, as its shards are of them: exact until a step that is rounded."""
    masters = model.policy.masters
    return {f"model.{k}": w.detach().to(masters.parameters[k].dtype) for k, w in masters.weights.items()}
