"""Each tensor once in a checkpoint: what need not be saved beside the model, and where it comes from again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from etude.core.errors import CheckpointError
from etude.policies.fingerprint import fingerprint
from etude.policies.language import LanguagePolicy
from etude.policies.loading import load_model
from etude.policies.protocols import Model
from etude.runtime.shards import size


def spared(policy: LanguagePolicy) -> set[str]:
    """Names, of `policy.tensors`, that a checkpoint leaves out.

    Weights that `policy.save` writes exactly (not those that are rounded from float32 masters), and a reference that is
    still what the run started from.
    """
    start = _start(policy)
    names = set() if start is None else {f"reference.{k}" for k, _ in start.named_parameters()}
    return names | ({f"model.{k}" for k in policy.masters.weights} if _whole(policy) else set())


def mark(policy: LanguagePolicy) -> list[float] | None:
    """The fingerprint that stands for a reference that is not saved."""
    start = _start(policy)
    return None if start is None else list(fingerprint(start.parameters()))


def recalled(
    policy: LanguagePolicy, tensors: Mapping[str, Tensor], folder: Path, was: Sequence[float] | None
) -> dict[str, Tensor]:  # fmt: skip
    """The tensors of a checkpoint with those that it left out.

    Args:
        folder: what `policy.save` wrote with them.
        was: the fingerprint of the reference, if that was left out.

    Raises: CheckpointError if the model that the run started from is another one now.
    """
    policy.reference_moved = any(k.startswith("reference.") for k in tensors)
    found = dict(tensors)
    if was is not None:
        policy.keep_reference()
        if mark(policy) != list(was):
            raise CheckpointError(
                "The model that this run started from is its reference, and is no longer what it was: put it back."
            )
        found |= {k: v for k, v in policy.tensors().items() if k.startswith("reference.")}
    if not any(k.startswith("model.") for k in tensors):
        import torch

        saved = load_model(str(folder), policy.dtype, torch.device("cpu"))
        found |= {f"model.{k}": v.detach() for k, v in saved.named_parameters()}
    return found


def checkpoint_bytes(policy: LanguagePolicy, moves: bool, twice: bool = False) -> int:
    """What a checkpoint takes on the disk, with two moments of every trained number (AdamW).

    Args:
        moves: whether its reference will be another than the start.
        twice: whether two optimizers take its steps, each with moments of its own.
    """
    trained = sum(size(p) * p.element_size() for p in policy.parameters())
    written = trained if policy.has_adapter else sum(p.nbytes for p in policy.model.parameters())
    reference = trained if policy.reference is not None and (moves or policy.reference_moved) else 0
    return written + ((2 if _whole(policy) else 3) + 2 * twice) * trained + reference


def _start(policy: LanguagePolicy) -> Model | None:
    """The reference, if it is still what the run started from."""
    return None if policy.reference_moved else policy.reference


def _whole(policy: LanguagePolicy) -> bool:
    """Whether `policy.save` writes the trained weights, each exactly as it is trained."""
    masters = policy.masters
    exact = all(w.dtype == policy.dtype for w in masters.weights.values())
    return masters.exact and exact and not policy.has_adapter
