"""`etude pretrain`: make a base model."""

from __future__ import annotations

from pathlib import Path

from etude.core.errors import UnknownNameError


def pretrain(model: str = "tiny", *, out: Path | None = None, seed: int = 0) -> None:
    """Train a base model that comes with etude on worked examples of built-in tasks.

    Parameters
    ----------
    model
        Which base model: 'tiny', which has the single skills of the language tasks, or 'tiny-agent', which has read
        mediocre episodes of the agents' tasks.
    out
        Where to; the folder MODEL-SEED by default. The shipped weights were made with seed 0.
    """
    from etude.runs.bases import BASES
    from etude.runs.pretrain import pretrain as run

    if model not in BASES:
        raise UnknownNameError("base model to pretrain", model, BASES)
    run(out or Path(f"{model}-{seed}"), seed, base=BASES[model])
