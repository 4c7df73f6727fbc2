"""The noun policy: what a run of control learned, to act with in Python, one observation at a time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.core.control import ControlTask
from etude.core.errors import ConfigError
from etude.runs import given
from etude.runs.saved import locate
from etude.runs.training import compose_task

if TYPE_CHECKING:
    from etude.evaluation.acting import TrainedPolicy


def policy(checkpoint: str | Path, *, member: int = 0, task: Any = None) -> TrainedPolicy:
    """The trained policy of a run of control: called with an observation, it returns the action for `env.step`.

        policy = etude.policy("runs/ppo-CartPole-v1-0")
        action = policy(observation)

    Args:
        checkpoint: a run folder (its newest checkpoint), or a checkpoint in it.
        member: of the population.
        task: what the run was trained on, once more, if it was given in Python and has no name.

    Raises: ConfigError for what is no run of control, or a member that it does not have.
    """
    from etude.evaluation.acting import TrainedPolicy
    from etude.runs.worlds import control

    place, config = locate(checkpoint)
    if "task" not in config:
        raise ConfigError(f"{checkpoint} is no run, nor a checkpoint in one.")
    if task is None and _unnamed(config):
        raise ConfigError(
            f"{checkpoint} was trained on {config['task']}, which only lives in Python: give it again, so that the "
            f"policy knows what it sees, as in etude.policy({str(checkpoint)!r}, task={given.spoken(config['task'])})."
        )
    if task is not None and not _unnamed(config):
        raise ConfigError(f"{checkpoint} knows its task by name, {config['task']}: leave task out.")
    name = config["task"] if task is None else given.task_of(task, given.home(None))
    made = compose_task(name, config["task_fields"])
    if not isinstance(made, ControlTask):
        raise ConfigError(
            f"{checkpoint} is no run of control. A language model is loaded as any other: "
            f'AutoModelForCausalLM.from_pretrained("{Path(place) / "model"}").'
        )
    return TrainedPolicy(control.restore(place, config, made), member)


def _unnamed(config: Mapping[str, Any]) -> bool:
    return str(config["task"]).startswith("<")
