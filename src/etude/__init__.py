"""etude: reinforcement learning where every method is a short composition of shared parts.

The verbs, the same as in the shell:

    result = etude.train("grpo", "compose", steps=150)
    etude.evaluate(result.folder, k=(1, 8))
    etude.compare(["grpo", "dr-grpo"], "compose", seeds=5)
    print(etude.method("dapo"))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from etude.core import kernels as _kernels

_kernels.request()

__version__ = "0.1.0"

if TYPE_CHECKING:
    from etude.core.method import Method
    from etude.core.task import Task
    from etude.core.worlds import World
    from etude.evaluation.part_check import check_part
    from etude.evaluation.task_check import check_task
    from etude.runs.acting import policy
    from etude.runs.comparing import compare
    from etude.runs.data_make import make_data
    from etude.runs.evaluate import evaluate
    from etude.runs.export import export
    from etude.runs.search import tune
    from etude.runs.train import resume, train
    from etude.runs.training import Result
    from etude.runtime.callbacks import Callback

_HOMES = {
    "train": "etude.runs.train",
    "resume": "etude.runs.train",
    "tune": "etude.runs.search",
    "make_data": "etude.runs.data_make",
    "evaluate": "etude.runs.evaluate",
    "export": "etude.runs.export",
    "policy": "etude.runs.acting",
    "check_part": "etude.evaluation.part_check",
    "check_task": "etude.evaluation.task_check",
    "compare": "etude.runs.comparing",
    "Result": "etude.runs.training",
    "Callback": "etude.runtime.callbacks",
    "Method": "etude.core.method",
    "Task": "etude.core.task",
}


def method(name: str, world: World | str | None = None) -> Method:
    """The method called `name`; where it has several compositions the one for `world` ('language', 'control', ...).

    Raises: UnknownNameError with the closest names, ConfigError for a world that it is not made for.
    """
    from etude.core.registry import get_method

    return get_method(name, world)


def methods() -> list[str]:
    """Ids of every built-in method."""
    from etude.core.registry import files

    return sorted(files("methods"))


def task(name: str) -> Task:
    """The task called `name`. Raises UnknownNameError with the closest names."""
    from etude.tasks import resolve_task

    return resolve_task(name)


def tasks() -> list[str]:
    """Ids of every built-in task."""
    from etude.core.registry import files

    return sorted(files("tasks"))


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'etude' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})  # what is loaded when it is used is completed in a notebook all the same


__all__ = [
    "Callback", "Method", "Result", "Task", "check_part", "check_task", "compare", "evaluate", "export", "make_data",
    "method", "methods", "policy", "resume", "task", "tasks", "train", "tune",
]  # fmt: skip
