"""`etude export`: a trained policy as it runs without etude."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

Flag = Annotated[bool, Parameter(negative=(), show_default=False)]


def export(
    checkpoint: Path,
    out: Path | None = None,
    *,
    member: int = 0,
    merge: Flag = False,
    push: str | None = None,
    private: Flag = False,
) -> None:
    """Write a policy as others use it: of language a plain Hugging Face folder, of control a torch.export program.

    Parameters
    ----------
    checkpoint
        A run folder (its newest checkpoint), or a checkpoint in it.
    out
        The folder; in control the file (.pt2), which torch.export.load(out).module() maps observations to actions with.
    member
        Which member of the population, in control: its policy with its normaliser.
    merge
        Fold an adapter into its base and write the whole model; by default the adapter alone, as peft reads it.
    push
        Upload it to the Hugging Face hub under this name, with a card of what the run measured.
    private
        Upload it where only you see it.
    """
    from etude.runs.export import export as run

    print(run(checkpoint, out, member=member, merge=merge, push=push, private=private))
