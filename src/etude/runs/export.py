"""The verb export: a trained policy as a program that runs without etude."""

from __future__ import annotations

from pathlib import Path

from etude.core.errors import ConfigError
from etude.runs.saved import locate
from etude.runs.training import compose_task
from etude.runs.worlds import world_of


def export(checkpoint: str | Path, out: str | Path, *, member: int = 0) -> Path:
    """Write a member's policy, with its normaliser, as a `torch.export` program that runs without etude.

    Args:
        checkpoint: a run folder of control (its newest checkpoint), or a checkpoint in it.
        out: the file, by custom `.pt2`; `torch.export.load(out).module()` maps observations to actions.

    Raises: ConfigError for a run of language (whose checkpoints are Hugging Face folders already), or no such member.
    """
    place, config = locate(checkpoint)
    if "task" not in config:
        raise ConfigError(f"{checkpoint} is no run of control, nor a checkpoint in one.")
    goal = compose_task(config["task"], config["task_fields"])
    world_of(goal).export(place, config, goal, Path(out), member)
    return Path(out)
