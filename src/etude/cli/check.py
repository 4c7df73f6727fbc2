"""`etude check`: what is wrong with an environment, before a run."""

from __future__ import annotations

import dataclasses
import json as json_module
from typing import Annotated

from cyclopts import Parameter


def check(
    environment: str,
    *,
    set: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    steps: int = 10_000,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Play an environment with random actions and say what is wrong with it, one sentence each.

    Spaces that can be learned, what reset and step return, bounds and dtypes, finite numbers, the same numbers under
    the same seed, terminated apart from truncated, independence of environments, resuming, speed. The exit code is 1
    if there are faults.

    Parameters
    ----------
    environment
        file.py:Class, module:Class, an id of Gymnasium or EnvPool (CartPole-v1), or a built-in environment.
    set
        Fields of the task, as in task.arguments={"gravity":1.6}. Repeatable.
    steps
        Steps of random play; it ends after 10 seconds in any case.
    json
        Print level, about and sentence of each finding as JSON.
    """
    from etude.core.errors import ConfigError
    from etude.evaluation.environment_check import check_environment
    from etude.runs.training import compose_task

    if steps < 1:
        raise ConfigError(f"--steps must be at least 1, got {steps}.")
    found = check_environment(compose_task(environment, set), steps=steps)
    faults = sum(f.level == "fault" for f in found)
    if json:
        print(json_module.dumps([dataclasses.asdict(f) for f in found], indent=1))
    else:
        _show(environment, found, faults)
    if faults:
        raise SystemExit(1)


def _show(environment: str, found: list, faults: int) -> None:
    from shlex import quote

    from rich.console import Console

    from etude.runtime.progress import printable

    console = Console(highlight=False)
    marks = {"fault": "[red]✗ fault  [/]", "warning": "[yellow]! warning[/]", "fact": "[dim]· fact   [/]"}
    for f in found:
        console.print(f"{marks[f.level]}  [bold]{f.about}[/]  {printable(f.sentence)}", soft_wrap=True)
    if faults:
        console.print(f"\n{faults} fault{'s' if faults > 1 else ''}: repair {'them' if faults > 1 else 'it'} first.")
        return
    console.print("\nNo faults. Train on it with:")
    console.print(f"  etude train ppo --task {quote(environment)}", style="bold", markup=False, soft_wrap=True)
