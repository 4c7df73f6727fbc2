"""A session of a run: the evaluation before, the steps, the evaluation after, and what is left behind."""

from __future__ import annotations

import difflib
import json
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.core.errors import ConfigError, UnknownNameError
from etude.core.loop import Loop
from etude.core.method import Method
from etude.core.task import Task
from etude.runs.kinds import run_of
from etude.runs.training import Options, Result, say
from etude.runs.warm import go_on
from etude.runs.worlds import world_of
from etude.runtime.interrupts import Interrupted
from etude.runtime.jsonl import JsonLines
from etude.runtime.looks import Best, Look
from etude.runtime.stopping import Stopping, best_by, parse_stop

if TYPE_CHECKING:
    from etude.runtime.callbacks import Callbacks
    from etude.runtime.folder import RunFolder
    from etude.runtime.progress import Progress
    from etude.runtime.run import RunResult
    from etude.runtime.sources import Inputs


def prepare(method: Method, task: Task, options: Options) -> None:
    """Do what may fail before anything is written or a large model loads."""
    run_of(method).check(method, task)
    _stopping(task, options)
    _check_keep_best(task, options)
    run_of(method).ready(method, task, options)


def run(
    folder: RunFolder, method: Method, task: Task, options: Options, called: Sequence[Any],
    inputs: Callable[[], Inputs] | None = None,
) -> Result:  # fmt: skip
    """Train to the end, as runs of its kind do. `inputs`, of a new run, is asked once all is there, and recorded."""
    return run_of(method).session(folder, method, task, options, called, inputs)


def train_in(
    folder: RunFolder, method: Method, task: Task, options: Options, called: Sequence[Any],
    inputs: Callable[[], Inputs] | None,
) -> Result:  # fmt: skip
    """Train one loop to its end."""
    kind = run_of(method)
    loop = kind.build(method, task, options)
    try:
        return _session(folder, method, task, options, called, inputs, loop)
    finally:
        kind.end(loop)


def _session(
    folder: RunFolder, method: Method, task: Task, options: Options, called: Sequence[Any],
    inputs: Callable[[], Inputs] | None, loop: Loop,
) -> Result:  # fmt: skip
    """The sentences of its beginning, then the steps."""
    from etude.runtime.callbacks import Callbacks, RunState
    from etude.runtime.progress import Progress
    from etude.runtime.sources import record

    kind = run_of(method)
    assert options.steps is not None
    steps = kind.training_steps(method, options.steps)
    if folder.checkpoint is None:
        folder.record_environment(options.seed, kind.promises(loop))  # again, now that the threads are chosen
        for sentence in go_on(loop, options) if options.after else world_of(task).begin(loop, options):
            say(sentence, options.quiet)
    if inputs is not None:
        record(folder.path, inputs())
    say(" ".join(filter(None, (kind.sentence(loop, method, task), kind.rate(loop, method, task)))), options.quiet)
    _say_disk(folder, loop, options)
    progress = Progress(steps, loop.headline, quiet=options.quiet)
    callbacks = Callbacks(called, RunState(folder.path, loop, steps), progress.note)
    callbacks.tell("on_start")
    try:
        done = _train(folder, method, task, options, loop, progress, callbacks)
    except BaseException as error:
        callbacks.ended(str(error) or type(error).__name__)
        raise
    callbacks.ended(done.why)
    return _result(done, method, task, options)


def _train(
    folder: RunFolder, method: Method, task: Task, options: Options, loop: Loop, progress: Progress,
    callbacks: Callbacks,
) -> RunResult:  # fmt: skip
    """The evaluation before, the steps, the evaluation after."""
    from etude.runtime.run import Run

    kind, steps = run_of(method), progress.steps
    evaluated = task.evaluated() if options.evaluate != 0 and kind.acts(method) else ()
    stopping = _stopping(task, options, options.until and kind.training_steps(method, options.until))
    if "before" in evaluated and folder.checkpoint is None:
        callbacks.evaluated(_evaluate(folder, loop, task, options, "before"))
    if folder.step < steps:
        _forget_later(folder.path)
    sinks = [s for name in options.sinks for s in _open_sink(name, folder)]
    every = options.evaluate_every and kind.training_steps(method, options.evaluate_every)
    looks: dict[int, Look] = {}

    def look() -> Look:
        looks.clear()
        return looks.setdefault(loop.finished, world_of(task).look(loop, task, options))

    done = Run(
        folder, loop, steps, checkpoint_every=options.checkpoint_every, sinks=sinks, progress=progress,
        look=look if "between" in evaluated else None, look_every=every,
        stopping=stopping, callbacks=callbacks, keep=options.keep, keep_best=options.keep_best,
    ).execute()  # fmt: skip
    if "after" in evaluated and "after" not in _load_evaluation(folder.path):
        try:
            callbacks.evaluated(_evaluate(folder, loop, task, options, "after", looks.get(done.step)))
        except KeyboardInterrupt:
            raise Interrupted(
                f"Stopped while sampling after training. The {done.step} steps are done ({done.checkpoint}); sample "
                f"again with: {folder.resume_command}",
                signal.SIGINT,
            ) from None
    return done


def _result(done: RunResult, method: Method, task: Task, options: Options) -> Result:
    """What the run left behind, its page among it."""
    from etude.evaluation.report import write_report
    from etude.loops.differences import never_differed

    write_report(done.folder, world_of(task).WORDING)
    flat = never_differed(JsonLines.read(done.folder / "metrics.jsonl"))
    scores = _load_evaluation(done.folder)
    notes = [sentence for sentence in (done.why, flat) if sentence]
    return Result(
        done.folder, method.id, task.id, done.step, done.seconds, done.checkpoint, scores, notes,
        best_evaluation(done.folder, options.stop_when),
    )  # fmt: skip


def best_evaluation(folder: Path, stop_when: str | None) -> Best | None:
    """Of a run with `evaluate_every`; by the metric that patience waits for, else by the first."""
    path = folder / "evaluations.jsonl"
    if not path.is_file():
        return None
    return best_by(list(JsonLines.read(path)), None if stop_when is None else parse_stop(stop_when))


def _stopping(task: Task, options: Options, until: int | None = None) -> Stopping:
    """When the run ends before its last step. Raises ConfigError for an evaluation that is not made on the way, and for
    a metric that none has."""
    when = None if options.stop_when is None else parse_stop(options.stop_when)
    metrics, (split, *others) = world_of(task).measured(task, options)
    evaluated = {f"{split}/{metric}" for metric in metrics}
    if when is not None and (elsewhere := when.name.partition("/")[0]) in others:
        raise ConfigError(
            f"Evaluations in between are of {split}: stop at {split}/..., or --evaluate-split {elsewhere}."
        )
    if when is not None and when.name not in evaluated and _means_evaluation(when.name, task, metrics, split):
        known = sorted(evaluated)
        raise UnknownNameError("metric to stop at", when.name, known, f"Evaluations have: {', '.join(known)}.")
    if when is not None and when.name in evaluated and options.evaluate_every is None:
        raise ConfigError(f"{when.name} is known after an evaluation: say how often with --evaluate-every N.")
    return Stopping(when, options.minutes, evaluated if options.evaluate_every else (), until)


def _means_evaluation(name: str, task: Task, metrics: list[str], split: str) -> bool:
    """Whether a name is of an evaluation, if a wrong one: what training logs is only known after its first step."""
    if name in metrics:  # without its split, and training has none of that name
        return ("@" in name or "/" in name) and world_of(task).curve(name)[0] != name
    before, slash, _ = name.partition("/")
    return bool(slash) and bool(difflib.get_close_matches(before, [split], cutoff=0.7))


def _check_keep_best(task: Task, options: Options) -> None:
    """Raises ConfigError for a metric to keep the best by that no evaluation on the way has."""
    if options.keep_best is None:
        return
    metrics, splits = world_of(task).measured(task, options)
    known = [f"{splits[0]}/{metric}" for metric in metrics]
    if options.keep_best not in known:
        raise UnknownNameError(
            "metric to keep the best by", options.keep_best, known, f"There are: {', '.join(known)}."
        )
    if options.evaluate_every is None:
        raise ConfigError(f"{options.keep_best} is known after an evaluation: say how often with --evaluate-every N.")


def _say_disk(folder: RunFolder, loop: Loop, options: Options) -> None:
    """How much the checkpoints will take, with a warning if the disk has less."""
    from etude.runtime import disk

    if size := getattr(loop, "checkpoint_bytes", 0):
        count = options.keep + (options.keep_best is not None)
        say(disk.sentence(folder.path, size, count), options.quiet)


def _open_sink(name: str, folder: RunFolder) -> list[Any]:
    """The sink, or nothing and a sentence if it cannot be used: that never stops a run."""
    from etude.core.errors import MissingExtraError
    from etude.runtime.sinks import open_sinks

    try:
        return list(open_sinks([name], folder.path, folder.config, folder.step, say))
    except MissingExtraError as error:
        say(f"{error}. The run goes on without it; metrics.jsonl has all its metrics.")
        return []


def _evaluate(
    folder: RunFolder, loop: Loop, task: Task, options: Options, when: str, known: Look | None = None
) -> dict[str, dict[str, float]]:
    """Evaluate, and add what came out to `evaluation.json`; returns it by split."""
    scores = _load_evaluation(folder.path)
    measured = world_of(task).evaluation(loop, task, options, when, known)
    scores[when] = measured.scores
    scores.setdefault("samples", {})[when] = measured.samples
    scores.setdefault("solved", {})[when] = measured.solved
    _save_evaluation(folder.path, scores)
    return {split: {k: v["value"] for k, v in found.items()} for split, found in measured.scores.items()}


def _forget_later(folder: Path) -> None:
    """Take out what was sampled at an earlier end."""
    scores = _load_evaluation(folder)
    if scores.pop("after", None) is not None:
        _save_evaluation(folder, scores)


def _load_evaluation(folder: Path) -> dict[str, Any]:
    path = folder / "evaluation.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _save_evaluation(folder: Path, scores: dict[str, Any]) -> None:
    from etude.runtime import disk

    disk.replace_file(folder / "evaluation.json", json.dumps(scores, indent=1).encode())
