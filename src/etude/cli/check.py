"""`etude check`: what is wrong with an environment, a task, a part, a run's file or the sandbox, before a run."""

from __future__ import annotations

import dataclasses
import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from etude.cli.task_fields import Fields

if TYPE_CHECKING:
    from etude.evaluation.environment_findings import Finding

SANDBOX = "sandbox"
"""A word that names no task."""


def check(
    environment: str,
    *,
    set: Fields = (),
    steps: int = 10_000,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Say what is wrong with an environment, a task, a part, a reward function or a method, one sentence each.

    An environment is played with random actions: spaces that can be learned, what reset and step return, bounds and
    dtypes, finite numbers, the same numbers under the same seed, terminated apart from truncated, independence of
    environments, resuming, speed. Of a task: problems, splits, scores, demonstrations, reset and step. Of a part:
    fields, JSON, state, what it returns on a small batch. Of a reward function: what it returns for six completions. Of
    a method: its own parts, and what keeps it from being trained. Of a run's file: names, fields and options, whether
    method and task fit each other. `etude check sandbox` tries over a hundred attacks on what code is run in. The exit
    code is 1 if there are faults.

    Parameters
    ----------
    environment
        file.py:Thing or module:Thing of an environment, task, part, reward function or method, an id of Gymnasium or
        EnvPool (CartPole-v1), a built-in task or method, a run's file (run.toml); or the word sandbox.
    set
        Fields of the task, as in task.arguments={"gravity":1.6}. Repeatable.
    steps
        Steps of random play; it ends after 10 seconds in any case.
    json
        Print level, about and sentence of each finding as JSON.
    """
    from etude.core.errors import ConfigError

    if steps < 1:
        raise ConfigError(f"--steps must be at least 1, got {steps}.")
    findings = _findings(environment, set, steps)
    faults = sum(f.level == "fault" for f in findings)
    if json:
        print(json_module.dumps([dataclasses.asdict(f) for f in findings], indent=1))
    else:
        _show(environment, findings, faults)
    if faults:
        raise SystemExit(1)


def _thing(name: str) -> object:
    """What a file or module has under that name, or the built-in method of that name; None for a task by its name."""
    from etude.core.registry import files, get_method, load_attribute
    from etude.tasks.control._names import is_id

    if name in files("methods"):
        return get_method(name)
    if name.startswith("reasoning-gym:") or is_id(name) or not (":" in name or name.endswith(".py")):
        return None
    return load_attribute(name if ":" in name else f"{name}:{Path(name).stem}")


def _trains(name: str) -> str | None:
    """What trains on a task or environment; None for what is neither."""
    from etude.core.control import ControlTask
    from etude.core.errors import ConfigError
    from etude.runs.training import compose_task

    try:
        return "ppo" if isinstance(compose_task(name), ControlTask) else "grpo"
    except ConfigError:
        return None


def _findings(name: str, changes: tuple[str, ...], steps: int) -> list[Finding]:
    """What the check of this kind of thing finds."""
    from etude.core.control import ControlTask
    from etude.core.method import Method
    from etude.core.part import Part
    from etude.core.task import Task
    from etude.evaluation.environment_check import check_environment
    from etude.evaluation.method_check import check_method, check_reward, scores_completions
    from etude.evaluation.part_check import check_part
    from etude.evaluation.sandbox_check.suite import check_sandbox
    from etude.evaluation.task_check import check_task
    from etude.runs.config import FORMATS
    from etude.runs.config_check import check_config
    from etude.runs.training import compose_task

    if name == SANDBOX:
        return check_sandbox()
    if name.endswith(FORMATS):
        return check_config(name)
    thing = _thing(name)
    cls = thing if isinstance(thing, type) else type(thing)
    if isinstance(thing, Method):
        return check_method(thing)
    if issubclass(cls, Part) and not issubclass(cls, Task):
        return check_part(thing)  # type: ignore[arg-type]  # a part or a class of them
    if scores_completions(thing):
        return check_reward(name)
    task = compose_task(name, changes)
    return check_environment(task, steps=steps) if isinstance(task, ControlTask) else check_task(task)


def _show(environment: str, findings: list[Finding], faults: int) -> None:
    from shlex import quote

    from rich.console import Console

    from etude.runs.config import FORMATS
    from etude.runtime.progress import printable

    console = Console(highlight=False)
    marks = {"fault": "[red]✗ fault  [/]", "warning": "[yellow]! warning[/]", "fact": "[dim]· fact   [/]"}
    for f in findings:
        console.print(f"{marks[f.level]}  [bold]{f.about}[/]  {printable(f.sentence)}", soft_wrap=True)
    if faults:
        console.print(f"\n{faults} fault{'s' if faults > 1 else ''}: repair {'them' if faults > 1 else 'it'} first.")
        return
    warnings = sum(f.level == "warning" for f in findings)
    none = f"{warnings} warning{'s' if warnings > 1 else ''}, no fault" if warnings else "No faults"
    if environment.endswith(FORMATS):
        console.print(f"\n{none}. Train with:")
        console.print(f"  etude train --config {quote(environment)}", style="bold", markup=False, soft_wrap=True)
        return
    if environment == SANDBOX or (method := _trains(environment)) is None:
        console.print(f"\n{none}.")
        return
    console.print(f"\n{none}. Train on it with:")
    console.print(f"  etude train {method} --task {quote(environment)}", style="bold", markup=False, soft_wrap=True)
