"""What to get good at."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.core.registry import Listing

if TYPE_CHECKING:
    from etude.core.task import Task

sys.modules[__name__].__class__ = Listing
GYM = "reasoning-gym:"
HUB = "hub:"
USUAL = "compose"
"""Where nobody names a task."""
LOGS = "logs"
"""Logs without an environment: their file is a field of it."""
OWNED = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
"""What the name of a data set of the hub looks like; with `hub:` before it, it can be nothing else."""


def beside(data: object, task: Any) -> Any:
    """The task, or logs alone where there are logs and nobody names another.

    >>> beside("week.csv", "compose"), beside("week.csv", "Pendulum-v1"), beside(None, "compose")
    ('logs', 'Pendulum-v1', 'compose')
    """
    return LOGS if data is not None and isinstance(task, str) and task == USUAL else task


def resolve_task(name: str) -> Task:
    """The task that a user means.

    Args:
        name: the id of a built-in task; 'reasoning-gym:NAME'; a file of JSONL, JSON, CSV, TSV or Parquet, a folder of
            them, JSONL of dialogues with rewards, or a data set of the hub ('openai/gsm8k', 'hub:openai/gsm8k'); an id
            of EnvPool or Gymnasium ('CartPole-v1'); 'module:attribute' or 'file.py:attribute' of a Task, of a Task
            class that needs no arguments, of a gymnasium.Env class, or of a function that returns an Env.

    Raises: UnknownNameError with the closest names; DataError or ConfigError for something that is no task.
    """
    from etude.core.errors import UnknownNameError
    from etude.core.registry import files, load_task

    if name in files("tasks"):
        return _as_task(name, load_task(name))
    if name == LOGS:
        from etude.tasks.control.logged import LoggedTask

        return LoggedTask()
    if name.startswith(GYM):
        from etude.tasks.language.reasoning_gym import ReasoningGym

        return ReasoningGym(name.removeprefix(GYM))
    if _is_data(name):
        return _data(name)
    from etude.tasks.control import _names

    if _names.is_id(name):
        from etude.tasks.control.environment import EnvironmentTask

        return EnvironmentTask(name)
    if ":" in name or name.endswith(".py"):
        return _as_task(name, load_task(name))
    if OWNED.fullmatch(name):
        return _data(name)
    hint = (
        "`etude tasks` lists them all; reasoning-gym:NAME, data.jsonl, file.py:attribute, environments of EnvPool "
        "and Gymnasium (CartPole-v1) and data sets of the hub (owner/name) are tasks too."
    )
    raise UnknownNameError("task", name, files("tasks"), hint)


def _is_data(name: str) -> bool:
    """Whether a name is that of data. A folder called like an environment is, if there is data in it."""
    from etude.tasks.control import _names
    from etude.tasks.language.rows import kind

    if kind(name) or name.startswith(HUB):
        return True
    if not name or not Path(name).is_dir():
        return False
    return not _names.is_id(name) or any(kind(file.name) for file in Path(name).rglob("*"))


def _data(name: str) -> Task:
    from etude.experience.dialogues import is_dialogues
    from etude.tasks.agents._dialogues import Dialogues
    from etude.tasks.language.files import DataFile

    return Dialogues(data=name) if is_dialogues(name) else DataFile(name)


def _as_task(name: str, thing: object) -> Task:
    """`found` if it is a task, or one made from it if it is a class of tasks or makes environments."""
    from etude.core.errors import ConfigError
    from etude.core.task import Task
    from etude.tasks.control import _names

    make = _names.remade(thing)
    if _names.is_environment(make) or (not isinstance(make, Task) and _names.returns_environment(make, name)):
        from etude.tasks.control.environment import EnvironmentTask

        return EnvironmentTask(name)
    if isinstance(thing, type) and issubclass(thing, Task):
        try:
            return thing()
        except TypeError as error:
            raise ConfigError(f"{name} cannot be made without arguments ({error}): name an instance.") from None
    if not isinstance(thing, Task):
        if why := _names.no_environment(thing, name):
            raise ConfigError(why)
        raise ConfigError(
            f"{name} must be a Task or a Task class, got {type(thing).__name__}. (A gymnasium.Env class, or a function "
            "without arguments that returns an environment, would do too.)"
        )
    return thing
