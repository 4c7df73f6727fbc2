"""`etude pretrain`: make a base model."""

from __future__ import annotations

from pathlib import Path

from etude.core.errors import UnknownNameError


def pretrain(model: str = "tiny", *, out: Path | None = None, seed: int = 0) -> None:
    """Train the base model `tiny` on worked examples of the built-in tasks' atomic skills.

    Parameters
    ----------
    model
        Which base model; there is one, 'tiny'.
    out
        Where to; the folder tiny-SEED by default. The shipped weights were made with seed 0.
    """
    if model != "tiny":
        raise UnknownNameError("base model to pretrain", model, ["tiny"])
    from etude.runs.pretrain import pretrain as run

    run(out or Path(f"tiny-{seed}"), seed)
