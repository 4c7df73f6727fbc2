"""What to get good at."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.core.registry import Listing

if TYPE_CHECKING:
    from etude.core.task import Task

sys.modules[__name__].__class__ = Listing
GYM = "reasoning-gym:"
DATA = (".jsonl", ".json", ".parquet", ".csv", ".tsv")  # the last three are refused with advice


def resolve_task(name: str) -> Task:
    """The task that a user means.

    Args:
        name: the id of a built-in task; 'reasoning-gym:NAME'; a .jsonl or .json file, or a folder with train.jsonl;
            'module:attribute' or 'file.py:attribute' of a Task, or of a Task class that needs no arguments.

    Raises: UnknownNameError with the closest names; DataError or ConfigError for something that is no task.
    """
    from etude.core.errors import UnknownNameError
    from etude.core.registry import files, load

    if name in files("tasks"):
        return _as_task(name, load("tasks", name))
    if name.startswith(GYM):
        from etude.tasks.language.reasoning_gym import ReasoningGym

        return ReasoningGym(name.removeprefix(GYM))
    if name.lower().endswith(DATA) or (name and Path(name).is_dir()):
        from etude.tasks.language.files import DataFile

        return DataFile(name)
    if ":" in name or name.endswith(".py"):
        return _as_task(name, load("tasks", name))
    hint = "`etude tasks` lists them all; reasoning-gym:NAME, data.jsonl and file.py:attribute are tasks too."
    raise UnknownNameError("task", name, files("tasks"), hint)


def _as_task(name: str, found: Any) -> Task:
    """`found` if it is a task, or one made from it if it is a class of tasks."""
    from etude.core.errors import ConfigError
    from etude.core.task import Task

    if isinstance(found, type) and issubclass(found, Task):
        try:
            return found()
        except TypeError as error:
            raise ConfigError(f"{name} cannot be made without arguments ({error}): name an instance.") from None
    if not isinstance(found, Task):
        raise ConfigError(f"{name} must be a Task or a Task class, got {type(found).__name__}.")
    return found
