"""`etude train`: one run, or several seeds."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from etude.cli.task_fields import Fields
from etude.core.errors import ConfigError
from etude.tasks import USUAL, beside

if TYPE_CHECKING:
    from etude.runs.training import Result

Repeated = Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)]
Flag = Annotated[bool, Parameter(negative=(), show_default=False)]


def train(
    method: str = "grpo",
    *,
    task: str = USUAL,
    model: str = "tiny",
    steps: int | None = None,
    seed: int = 0,
    seeds: int | None = None,
    population: Repeated = (),
    after: str | None = None,
    anew: Repeated = (),
    out: str | None = None,
    set: Fields = (),
    with_: Annotated[tuple[str, ...], Parameter(name="--with", negative=(), show_default=False)] = (),
    reward: Repeated = (),
    config: str | None = None,
    preset: Annotated[bool, Parameter(show_default=False)] = True,
    data: str | None = None,
    heldout: str | None = None,
    columns: str | None = None,
    answer: str | None = None,
    skip_bad_rows: Flag = False,
    stream: Flag = False,
    chat: str | None = None,
    system: str | None = None,
    template_arguments: str | None = None,
    tools: str | None = None,
    resume: str | None = None,
    accept_changes: Flag = False,
    adapter: str | None = None,
    evaluate: int | None = None,
    evaluate_samples: int = 8,
    evaluate_split: str | None = None,
    evaluate_temperature: float = 1.0,
    evaluate_judge: str | None = None,
    evaluate_every: int | None = None,
    stop_when: str | None = None,
    minutes: float | None = None,
    until: int | None = None,
    device: str = "auto",
    dtype: str = "auto",
    autocast: Flag = False,
    gradient_checkpointing: Flag = False,
    micro_tokens: int | None = None,
    threads: int | None = None,
    on: str = "local",
    bound: int | None = None,
    engine: str | None = None,
    ranks: int | None = None,
    shard: Flag = False,
    checkpoint_every: int | None = None,
    keep: int = 2,
    keep_best: str | None = None,
    sink: Repeated = (),
    callback: Repeated = (),
    quiet: Flag = False,
) -> None:
    """Train a method on a task. Without arguments: grpo on `compose`, from the shipped base model, in a minute.

    In control (`etude train ppo --task CartPole-v1`) a run is a population: ten seeds trained together by default.

    Parameters
    ----------
    method
        A name (`etude methods`) or file.py:name.
    task
        A name (`etude tasks`), data.jsonl, reasoning-gym:NAME, an environment of EnvPool or Gymnasium, or file.py:name.
    model
        'tiny', 'tiny-agent' (for the tasks of agents), 'blank:LAYERSxWIDTH' (random weights), 'two-matrices:N',
        'path-table:N' or 'linear-attention:N' (tables of a graph of N nodes), a local folder, a causal language model
        of the hub, or a run's folder: its newest whole checkpoint; in control a run alone, whose policies the members
        begin with. 'selective:NAME' is a new adapter beside any of these, which stays frozen, with a selector of who
        writes each token; 'wide:2x4:NAME' is twice as wide, in its feed-forward layers four times, and says what NAME
        says.
    steps
        Training steps, 150 by default; in control environment steps of each member, by default the task's.
    seed
        All randomness comes from it.
    seeds
        Train this many seeds, from --seed on: each in its own folder; in control as one population (10 by default).
    population
        A field that differs between members, as in lr=1e-4,3e-4 (control); every value with every seed. Repeatable.
    after
        A run to go on from, with all of its state but in a folder of one's own, up to step --steps counted from its
        first; model and seed are that run's.
    anew
        What of --after begins anew all the same: optimizer, reference. Repeatable.
    out
        The run's folder; by default runs/METHOD-TASK-SEED.
    set
        Fields by their paths, as in optimizer.lr=3e-4 experience.size=16 task.levels=2,3. Repeatable.
    with_
        A part or another method's change to stack, as in kl-to-reference. Repeatable.
    reward
        A Python function over completions: my_rewards.py:score or module:function, with a weight as in
        my_rewards.py:score=0.2. Repeatable: they are added up.
    config
        A file that says all this by the same names (TOML, YAML), as every run writes one: run.toml. Flags win over it.
    preset
        Begin with the settings that were measured for this method on this task, where there are any; all else wins.
    data
        Logs to learn from (control): .npz, D4RL's .hdf5, a Minari folder, .csv, .parquet, or a run folder with a
        replay. Returns are played in --task; without it nothing is played.
    heldout
        Other logs, not learned from, which judge what was learned in the end where there is no --task to play in; or a
        share of the episodes of --data (0.2), from which then nothing is learned.
    columns
        Names of a data file's columns where it calls them something else, as in prompt=question,answer=solution; of a
        table of logs 'obs=x1,x2 action=u reward=r episode=id done=end'.
    answer
        How a data file's answers are found in completions: auto, boxed, last-number, choice or exact.
    skip_bad_rows
        Leave out rows of a data file that cannot be read, and say how many.
    stream
        Read rows of data when they are needed, for what does not fit into memory.
    chat
        Whether text is shown through the model's chat template: auto (if it has one), always or never.
    system
        A file with the system's message.
    template_arguments
        What the chat template is given besides, as in enable_thinking=false.
    tools
        What the model can call: my_tools.py (its functions), my_tools.py:find, calculator, search:FOLDER of texts,
        python (in a sandbox), sql:FILE; several with commas.
    resume
        Go on with a run that was stopped; only --steps, --until, --ranks, --shard, --accept-changes, --callback and
        --quiet go with it.
    accept_changes
        With --resume: go on although data, models or your own files changed since; the run records which.
    adapter
        Train a low-rank adapter: lora, rslora, dora, or qlora (its base in 4 bits, on CUDA); --set adapter.rank=8
        (alpha, targets, dropout, bits, ...) its fields.
    evaluate
        Problems per split (100 by default), in control episodes of each member (5 to 20, as a tenth of the training has
        room for), sampled before and after training; 0 for none.
    evaluate_samples
        Completions of each of those problems.
    evaluate_split
        The split to evaluate on; by default all that are not trained on.
    evaluate_temperature
        Of those completions; 0 for one greedy completion of each problem, whose metrics are named pass@1/greedy.
    evaluate_judge
        Evaluations also say how well it judges solutions that the task gives (judge/f1 of the first wrong step): plain,
        or self-ref with a solution of its own in view.
    evaluate_every
        Also evaluate in between, each time after so many steps (of the unit of --steps), into evaluations.jsonl.
    stop_when
        End the run once this holds, as in 'test/pass@1 > 0.9' (with --evaluate-every) or 'reward >= 0.8' (of a step);
        or once nothing improves, as in 'no better test/pass@1 in 5' (evaluations) or 'no lower loss in 20' (steps).
    minutes
        End it after so many minutes; --resume goes on.
    until
        End it for now after so many of its --steps, by which its schedules go; --resume goes on.
    device
        cpu, cuda, cuda:1; by default the GPU if there is one, in control the CPU, which plays the environments either
        way. Apple's MPS has no float64 and is not used.
    dtype
        Of the weights: float32, bfloat16 or float64; by default float32.
    autocast
        Compute in bfloat16 where that is safe.
    gradient_checkpointing
        Recompute activations in the backward pass: less memory, more time.
    micro_tokens
        Tokens that go through the model at once in training; changes memory and speed, not results. By default 8192 on
        a CPU, on a GPU more where its memory has room for them.
    threads
        CPU threads; by default one for small models, all cores for others.
    on
        Where episodes are sampled: local, in this process; processes, in a process beside it; processes:2, in two;
        ray:8, on a Ray cluster, that of RAY_ADDRESS or as in ray:8@HOST:PORT, or without any on one of this machine.
        In control hogwild:2, two workers that learn on the same numbers (a3c and its kin).
    bound
        How many training steps old rows may be when they are learned from: with 1, sampling for the next step goes on
        beside the update of this one. Give it with --on processes. By default as the method says, 0 for most.
    engine
        Who samples the tokens of training: native:http://127.0.0.1:8000 (`etude engine start native`), or vLLM or
        SGLang in an environment of its own: vllm:http://..., sglang:http://...
    ranks
        How many processes take each update together, each on a part of the rows; by default this one alone. Also with
        --resume.
    shard
        Divide the weights of what is trained among the ranks, with gradients and moments: with --ranks of at least two.
        Also with --resume, which goes on as before if it is not given; --ranks 1 ends it.
    checkpoint_every
        Steps between checkpoints; by default as often as costs at most 2% of the time.
    keep
        How many checkpoints stay, the newest.
    keep_best
        A metric of --evaluate-every, as in test/pass@1: the checkpoint with the highest stays beside them.
    sink
        Also log to tensorboard, wandb or trackio. Repeatable.
    callback
        What is told how the run goes, and may end it: my.py:Slack, a class with on_step, on_evaluation, ... Repeatable.
    quiet
        Print only warnings and, at the end, the run's folder.
    """
    given = dict(locals())
    from etude.cli import shows
    from etude.runs.train import resume as go_on
    from etude.runs.train import train as run

    if resume is not None:
        _refuse_changes(given)
        shows.result(
            go_on(
                resume,
                steps=steps,
                accept_changes=accept_changes,
                quiet=quiet,
                callbacks=callback,
                until=until,
                data=data,
                ranks=ranks,
                shard=shard or None,
            ),
            quiet,
        )
        return
    if accept_changes:
        raise ConfigError("--accept-changes is for going on with a run: give it with --resume DIR.")
    options: dict[str, Any] = {
        "model": model, "steps": steps, "population": population, "after": after, "anew": anew, "evaluate": evaluate,
        "evaluate_samples": evaluate_samples, "evaluate_split": evaluate_split, "evaluate_every": evaluate_every,
        "evaluate_temperature": evaluate_temperature, "evaluate_judge": evaluate_judge,
        "stop_when": stop_when, "minutes": minutes, "until": until,
        "adapter": adapter, "device": device, "dtype": dtype, "autocast": autocast,
        "gradient_checkpointing": gradient_checkpointing, "micro_tokens": micro_tokens, "threads": threads, "on": on,
        "bound": bound, "engine": engine, "ranks": ranks, "shard": shard, "checkpoint_every": checkpoint_every,
        "keep": keep, "keep_best": keep_best, "sinks": sink, "callbacks": callback, "preset": preset, "quiet": quiet,
    }  # fmt: skip
    task = beside(data, task)
    of_task = {"data": data, "heldout": heldout, "columns": columns, "answer": answer, "skip_bad_rows": skip_bad_rows,
               "chat": chat, "system": system, "template_arguments": template_arguments, "tools": tools,
               "stream": stream}  # fmt: skip
    options |= {name: value for name, value in of_task.items() if value}
    if seeds is not None and seeds < 1:
        raise ConfigError(f"--seeds must be at least 1, got {seeds}.")
    if _together(task):
        result = run(method, task, seed=seed, seeds=seeds, out=out, set=set, with_=with_, reward=reward, **options)
        shows.result(result, quiet, "+".join((method, *with_)))
        return
    results: list[Result] = []
    for number in range(seed, seed + (seeds or 1)):
        where = out if seeds is None or out is None else str(Path(out) / f"seed-{number}")
        results.append(run(method, task, seed=number, out=where, set=set, with_=with_, reward=reward, **options))
        shows.result(results[-1], quiet, "+".join((method, *with_)))
    if len(results) > 1:
        shows.seeds(results)


def _together(task: str) -> bool:
    """Whether the seeds of this task are one run."""
    from etude.tasks import resolve_task

    return resolve_task(task).together


def _refuse_changes(given: dict[str, Any]) -> None:
    """Raise ConfigError if something is given beside --resume that a started run cannot change."""
    free = ("resume", "steps", "accept_changes", "callback", "until", "quiet", "data", "ranks", "shard")
    defaults = {k: p.default for k, p in inspect.signature(train).parameters.items()}
    if changed := [k for k, v in given.items() if k not in free and v != defaults[k]]:
        flags = " and ".join(f"--{k.strip('_').replace('_', '-')}" for k in changed)
        raise ConfigError(
            f"--resume goes on with the run as it was started, so {flags} cannot be given with it; only "
            "--steps, --until, --ranks, --shard and --callback can. Start a new run for other settings."
        )
