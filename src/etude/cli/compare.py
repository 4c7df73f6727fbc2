"""`etude compare`: methods against each other, with statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from etude.cli.task_fields import NOTHING, Fields, TaskFields
from etude.tasks import USUAL


def compare(
    *methods: str,
    task: str = USUAL,
    data: str | None = None,
    heldout: str | None = None,
    model: str = "tiny",
    seeds: int | None = None,
    steps: int | None = None,
    metric: str | None = None,
    split: str | None = None,
    out: Path = Path("runs"),
    set: Fields = (),
    reward: Annotated[tuple[str, ...] | None, Parameter(negative=())] = None,
    workers: int | None = None,
    evaluate: int | None = None,
    evaluate_every: int | None = None,
    preset: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    on: str = "local",
    frontier: str | None = None,
    of_task: TaskFields = NOTHING,
) -> None:
    """Train what is missing, then compare: interquartile means with intervals, probability of improvement, curves.

    Parameters
    ----------
    methods
        Names, file.py:name, or several stacked with +, as in grpo+kl-to-reference. The first is the baseline.
    data
        Logs that all of them learn from, which are played in --task ENVIRONMENT: .npz, D4RL's .hdf5, a Minari folder, a
        table with --columns, or a run folder.
    heldout
        Other logs, by which what was learned from --data is judged where there is no environment; or a share of the
        episodes of --data (0.2), from which then nothing is learned.
    seeds
        Runs of each, 3 by default; in control members of each, trained together, 10 by default.
    steps
        Training steps, 100 by default; in control environment steps of each member (updates, from logs), by default the
        task's.
    metric
        What is compared, after training: pass@1 by default, in control return (or return/deterministic), of --heldout
        logs fqe/deterministic (or fqe).
    out
        Where runs are kept and looked for; the comparison goes into a folder below it.
    set
        Fields set in every method, as in optimizer.lr=3e-4. Repeatable. Fields of a part that only some of the methods
        have (critic.network.hidden=64,64 beside bc) are set in these.
    reward
        A Python function over completions that scores all of them: my_rewards.py:score, or with a weight
        my_rewards.py:score=0.2. Repeatable.
    workers
        Runs at a time; all cores by default, of the cluster with --on ray.
    evaluate
        Problems of each split, in control episodes of each member, that every run is evaluated on; as in `etude train`.
    evaluate_every
        Also evaluate in between, each time after so many steps, for curves of the metric itself. What learns from logs
        alone, and what it is compared with, is evaluated every tenth of its steps where nobody says.
    preset
        Begin every method with the settings that were measured for it on this task; where one has none, all are
        trained as published.
    on
        Where runs are done: local; ray, on all machines of a Ray cluster (RAY_ADDRESS, or as ray@HOST:PORT), which all
        see --out.
    frontier
        Run every method with each value of a field, as in rewards.kl-penalty.coefficient=0.01,0.05,0.2, and compare
        them at equal KL divergence from the start: what is earned over the divergences that all of them reach.
    """
    from rich.console import Console

    from etude.runs.comparing import compare as run

    logs: dict[str, Any] = {name: path for name, path in (("data", data), ("heldout", heldout)) if path is not None}
    comparison = run(
        methods,
        task,
        model=model,
        seeds=seeds,
        steps=steps,
        metric=metric,
        split=split,
        out=out,
        set=set,
        reward=reward,
        workers=workers,
        evaluate=evaluate,
        evaluate_every=evaluate_every,
        preset=preset,
        on=on,
        frontier=frontier,
        **logs,
        **of_task.given(),
    )
    console = Console()
    console.print(comparison.comparison.table())
    for note in comparison.notes:
        console.print(note, markup=False)
    for path in comparison.files:
        console.print(f"  {path}", markup=False, soft_wrap=True)
