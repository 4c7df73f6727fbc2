"""`etude train`: one run, or several seeds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from etude.core.errors import ConfigError

if TYPE_CHECKING:
    from etude.training import Result

Repeated = Annotated[tuple[str, ...], Parameter(negative=())]
Flag = Annotated[bool, Parameter(negative=())]


def train(
    method: str = "grpo",
    *,
    task: str = "compose",
    model: str = "tiny",
    steps: int | None = None,
    seed: int = 0,
    seeds: int | None = None,
    out: str | None = None,
    set: Repeated = (),
    with_: Annotated[tuple[str, ...], Parameter(name="--with", negative=())] = (),
    reward: str | None = None,
    skip_bad_rows: Flag = False,
    resume: str | None = None,
    adapter: str | None = None,
    evaluate: int = 100,
    device: str = "auto",
    dtype: str = "auto",
    autocast: Flag = False,
    gradient_checkpointing: Flag = False,
    micro_tokens: int = 8192,
    threads: int | None = None,
    checkpoint_every: int | None = None,
    sink: Repeated = (),
    quiet: Flag = False,
) -> None:
    """Train a method on a task. Without arguments: grpo on `compose`, from the shipped base model, in a minute.

    Parameters
    ----------
    method
        A name (`etude methods`) or file.py:name.
    task
        A name (`etude tasks`), data.jsonl, reasoning-gym:NAME, or file.py:name.
    model
        'tiny', a local folder, or a causal language model on the Hugging Face hub.
    steps
        Training steps; 150 by default.
    seed
        All randomness comes from it.
    seeds
        Train this many seeds, from --seed on, each in its own folder.
    out
        The run's folder; by default runs/METHOD-TASK-SEED.
    set
        A field by its path, as in optimizer.lr=3e-4, experience.size=16 or task.levels=2,3. Repeatable.
    with_
        A part or another method's change to stack, as in kl-to-reference. Repeatable.
    reward
        A Python function over completions: my_rewards.py:score or module:function.
    skip_bad_rows
        Leave out rows of a data file that cannot be read, and say how many.
    resume
        Go on with a run that was stopped; only --steps, --quiet and this matter then.
    adapter
        Train a low-rank adapter: lora, rslora or dora.
    evaluate
        Problems per split sampled before and after training; 0 for none.
    sink
        Also log to tensorboard, wandb or trackio. Repeatable.
    """
    from etude.cli import shows
    from etude.verbs import resume as go_on
    from etude.verbs import train as run

    if resume is not None:
        shows.result(go_on(resume, steps=steps, quiet=quiet), quiet)
        return
    options: dict[str, Any] = {
        "model": model, "steps": 150 if steps is None else steps, "evaluate": evaluate, "adapter": adapter,
        "device": device, "dtype": dtype, "autocast": autocast, "gradient_checkpointing": gradient_checkpointing,
        "micro_tokens": micro_tokens, "threads": threads, "checkpoint_every": checkpoint_every, "sinks": sink,
        "quiet": quiet,
    }  # fmt: skip
    if seeds is not None and seeds < 1:
        raise ConfigError(f"--seeds must be at least 1, got {seeds}.")
    if skip_bad_rows:
        set = (*set, "task.skip_bad_rows=true")
    results: list[Result] = []
    for number in range(seed, seed + (seeds or 1)):
        where = out if seeds is None or out is None else str(Path(out) / f"seed-{number}")
        results.append(run(method, task, seed=number, out=where, set=set, with_=with_, reward=reward, **options))
        shows.result(results[-1], quiet, method)
    if len(results) > 1:
        shows.seeds(results)
