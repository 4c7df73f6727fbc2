"""The noun policy: what a run of control learned, to act with in Python, one observation at a time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.core.control import ControlTask
from etude.core.errors import ConfigError
from etude.runs.saved import locate
from etude.runs.training import compose_task

if TYPE_CHECKING:
    from etude.evaluation.acting import TrainedPolicy


def policy(checkpoint: str | Path, *, member: int = 0) -> TrainedPolicy:
    """The trained policy of a run of control: called with an observation, it returns the action for `env.step`.

        policy = etude.policy("runs/ppo-CartPole-v1-0")
        action = policy(observation)

    Args:
        checkpoint: a run folder (its newest checkpoint), or a checkpoint in it.
        member: of the population.

    Raises: ConfigError for what is no run of control, or a member that it does not have.
    """
    from etude.evaluation.acting import TrainedPolicy
    from etude.runs.worlds import control

    place, config = locate(checkpoint)
    if "task" not in config:
        raise ConfigError(f"{checkpoint} is no run, nor a checkpoint in one.")
    task = compose_task(config["task"], config["task_fields"]) if not _unnamed(config) else None
    if not isinstance(task, ControlTask):
        raise ConfigError(_why(checkpoint, place, config))
    return TrainedPolicy(control.restore(place, config, task), member)


def _unnamed(config: Mapping[str, Any]) -> bool:
    return str(config["task"]).startswith("<")


def _why(checkpoint: str | Path, place: str, config: Mapping[str, Any]) -> str:
    if _unnamed(config):
        return (
            f"{checkpoint} was trained on {config['task']}, which only lives in Python: put it in a file and train on "
            "file.py:Class, so that the policy knows what it sees."
        )
    return (
        f"{checkpoint} is no run of control. A language model is loaded as any other: "
        f'AutoModelForCausalLM.from_pretrained("{Path(place) / "model"}").'
    )
