"""`etude tune`: look for better settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from etude.cli.task_fields import NOTHING, Fields, TaskFields
from etude.tasks import USUAL

if TYPE_CHECKING:
    from etude.runs.search import Tuned

Repeated = Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)]


def tune(
    method: str,
    *,
    task: str = USUAL,
    data: str | None = None,
    heldout: str | None = None,
    over: Repeated,
    budget: int = 20,
    steps: int | None = None,
    seed: int = 0,
    seeds: int | None = None,
    model: str = "tiny",
    set: Fields = (),
    reward: Annotated[tuple[str, ...] | None, Parameter(negative=())] = None,
    evaluate: int | None = None,
    metric: str | None = None,
    out: Path | None = None,
    workers: int | None = None,
    quiet: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    of_task: TaskFields = NOTHING,
) -> None:
    """Train many settings a little, the better half of them more, until one is left (successive halving).

    The same command goes on where it stopped. Writes tune.json, and best.toml for `etude train --config`.

    Parameters
    ----------
    method
        A name, with parts stacked by +, or file.py:name.
    data
        Logs that all settings learn from, which are played in --task ENVIRONMENT, as in `etude train`.
    heldout
        Other logs, by which what was learned from --data is judged where there is no environment; or a share of the
        episodes of --data (0.2), from which then nothing is learned.
    over
        A field with a range (optimizer.lr=1e-5..1e-3) or choices (objective.high=0.2,0.28). Repeatable.
    budget
        How many settings are tried; all combinations of choices if there are no more.
    steps
        Of the run that is left, by default as in train. The others stop earlier.
    seed
        Of the draw, and the first of the runs.
    seeds
        Runs of each setting, 1 by default; in control members of its population, 5.
    set
        A field that all have, as in experience.size=16. Repeatable.
    reward
        A Python function over completions: my_rewards.py:score, or with a weight my_rewards.py:score=0.2. Repeatable.
    evaluate
        Problems per split, or episodes of each member, after every round.
    metric
        What decides, higher being better: pass@1 by default, in control return, of --heldout logs fqe/deterministic.
    out
        Where runs, table and best.toml are kept; by default runs/tune-METHOD-TASK-SEED.
    workers
        Runs at a time; all cores by default.
    quiet
        Print only where best.toml is.
    """
    from etude.runs.search import tune as search

    logs: dict[str, Any] = {name: path for name, path in (("data", data), ("heldout", heldout)) if path is not None}
    found = search(
        method, task, over=over, budget=budget, steps=steps, seed=seed, seeds=seeds, model=model, set=set,
        reward=reward, evaluate=evaluate, metric=metric, out=out, workers=workers, quiet=quiet,
        **logs, **of_task.given(),
    )  # fmt: skip
    if quiet:
        print(found.config)
    else:
        _show(found)


def _show(found: Tuned) -> None:
    """The table, the best first, and what to type next."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{found.metric} after each round", title_justify="left")
    for name in ("", *found.settings[0], *(f"{each['steps']:,} steps" for each in found.rounds)):
        table.add_column(name, overflow="fold")
    scores = [{int(k): v for k, v in each["scores"].items()} for each in found.rounds]

    def far(i: int) -> tuple[int, float]:
        own = [s[i] for s in scores if s.get(i) is not None]
        return len(own), own[-1] if own else 0.0

    for i in sorted(range(len(found.settings)), key=far, reverse=True):
        none = "failed" if i in found.failed else "means nothing"
        said = [none if s.get(i, 0) is None else f"{s[i]:.4g}" if i in s else "" for s in scores]
        table.add_row("best" if i == found.best else "", *found.settings[i].values(), *said)
    console = Console(highlight=False)
    console.print(table)
    console.print(found.sentence(), markup=False)
    for i, why in found.failed.items():
        console.print(f"Setting {i}: {why}", markup=False, soft_wrap=True)
    console.print("\nWhat to try next:")
    console.print(f"  etude train --config {found.config} --seed 1000", style="bold", markup=False, soft_wrap=True)
    console.print("      the best setting with another seed, which the search has not seen")
