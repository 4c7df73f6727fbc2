"""`etude export`: a trained policy as a file that runs without etude."""

from __future__ import annotations

from pathlib import Path


def export(checkpoint: Path, out: Path, *, member: int = 0) -> None:
    """Write one member's policy, with its normaliser, as a plain `torch.export` program (a .pt2 file).

    Parameters
    ----------
    checkpoint
        A run folder of control (its newest checkpoint), or a checkpoint in it.
    out
        The file; torch.export.load(out).module() maps observations to actions.
    member
        Which member of the population.
    """
    from etude.runs.export import export as run

    print(run(checkpoint, out, member=member))
