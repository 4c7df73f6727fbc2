"""What is wrong with a run's file, before a run."""

from __future__ import annotations

from pathlib import Path

from etude.core.errors import EtudeError
from etude.evaluation.environment_findings import Finding


def check_config(path: str | Path) -> list[Finding]:
    """Look at a run's file as `train` would: names, fields, options, whether method and task fit; nothing is trained.

    Returns: a fault with what `train` would say, or facts: what is trained, and on what.
    """
    from etude.runs.train import composed_of

    try:
        made = composed_of(path)
    except EtudeError as error:
        return [Finding("fault", "config", str(error))]
    chosen = made.options
    begun = f" It begins with the preset {made.preset.name}." if made.preset else ""
    return [
        Finding(
            "fact", "config", f"{made.method.id} on {made.task.id}: {chosen.steps:,} steps, seed {chosen.seed}.{begun}"
        ),
        *(Finding("warning", "config", sentence) for sentence in (*made.notes, *made.task.warnings())),
    ]
