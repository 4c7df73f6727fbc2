"""Drives a loop from its checkpoint to its last step; owns the clock, the logs, the signals and the messages."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Literal

from etude.core.errors import CheckpointError, EtudeError, NonFiniteError, RunFolderError, UnknownNameError
from etude.core.loop import Loop, StepReport
from etude.runtime import checkpoints, disk, round_trip
from etude.runtime.callbacks import Callbacks, RunState, flat
from etude.runtime.folder import RunFolder
from etude.runtime.interrupts import Interrupted, Interrupts
from etude.runtime.jsonl import JsonLines
from etude.runtime.looks import Look, best
from etude.runtime.progress import Progress
from etude.runtime.sinks import Guarded, Sink
from etude.runtime.stopping import Stopping

COST = 0.02
"""Largest part of a run's time that automatic checkpoints may take."""
SELDOM = 10.0
"""Seconds between two automatic checkpoints, at least."""


@dataclass(frozen=True)
class RunResult:
    """How far a run came.

    Args:
        status: 'stopped' where it ended before its last step because that was asked for, as `why` says.
        step: training steps finished, of `steps`.
        seconds: time spent training, all sessions together.
        checkpoint: the newest one.
    """

    status: Literal["finished", "stopped", "interrupted"]
    step: int
    steps: int
    seconds: float
    folder: Path
    checkpoint: Path
    why: str | None = None


class Run:
    """One session of a run, in an open folder.

    The same steps give the same numbers however often the run was stopped in between: everything that the next
    step depends on is in the checkpoint, and the logs are cut back to where they stood when it was taken.

    Args:
        folder: from `RunFolder.create` or `RunFolder.resume`; the caller closes it.
        loop: built from the folder's method and config; loads the folder's checkpoint if there is one.
        steps: training steps of the whole run.
        checkpoint_every: steps between checkpoints; None: as often as costs at most 2% of the time, and not more
            often than every 10 s. There is one at step 0 and one at the end in any case.
        keep: how many checkpoints stay; of one alone, none is left if it is damaged.
        keep_best: a metric of looks, 'test/pass@1': the checkpoint with the highest stays beside them, saved when a
            look finds it.
        episodes_per_step: rollouts of each step that go into `episodes.jsonl`.
        sinks: where else metrics go; closed at the end of the session.
        progress: what shows it; a bar on stderr by default.
        look: evaluates what is being trained; logged to `evaluations.jsonl`.
        look_every: training steps between two looks.
        stopping: says after each step whether the run ends there.
        callbacks: told of steps, evaluations and checkpoints; they may end the run and add metrics.
    """

    def __init__(
        self,
        folder: RunFolder,
        loop: Loop,
        steps: int,
        *,
        checkpoint_every: int | None = None,
        keep: int = 2,
        keep_best: str | None = None,
        episodes_per_step: int = 4,
        sinks: Sequence[Sink] = (),
        progress: Progress | None = None,
        look: Callable[[], Look] | None = None,
        look_every: int | None = None,
        stopping: Stopping | None = None,
        callbacks: Callbacks | None = None,
    ) -> None:
        self.folder, self.loop, self.steps = folder, loop, steps
        self.checkpoint_every, self.keep, self.episodes_per_step = checkpoint_every, keep, episodes_per_step
        self.keep_best = keep_best
        self._best: int | None = None
        self.progress = progress or Progress(steps, loop.headline)
        self.sinks = Guarded(sinks, self.progress.note)
        self.look, self.look_every, self.stopping = look, look_every, stopping or Stopping()
        self.callbacks = callbacks or Callbacks([], RunState(folder.path, loop, steps), self.progress.note)
        if look is not None and look_every is not None:
            folder.log("evaluations")  # before a checkpoint is loaded, so that it is cut back with the others
        self.checkpoint = folder.checkpoint
        self._root = folder.path / "checkpoints"
        self._before, self._began = 0.0, monotonic()
        self._saved_at, self._cost = monotonic(), 0.0

    @property
    def seconds(self) -> float:
        """Time spent training so far, all sessions together."""
        return self._before + monotonic() - self._began

    def execute(self) -> RunResult:
        """Train to the last step, or until it is to stop.

        Raises Interrupted, after saving, on Ctrl-C or SIGTERM; RunFolderError if the disk is full; whatever the
        loop raises, with a sentence added that says which checkpoint is safe: one of this step where the loop says
        that it is as it was before it (`EtudeError.intact`).
        """
        with self._explained(), Interrupts() as interrupts, self.progress:
            try:
                self._begin()
                why = self.callbacks.why
                while self.loop.finished < self.steps:
                    if interrupts.requested:
                        self._save()
                        raise self._interrupted(interrupts.requested)
                    if why:
                        self._save()
                        self.folder.stop(why)
                        return replace(self._result("stopped"), why=why)
                    report = self._step()
                    self._log(report)
                    self._look()
                    if self._due():
                        self._save()
                    why = self._why(report)
                self._save()
                return self._finish()
            finally:
                self.sinks.close()

    # A session

    def _begin(self) -> None:
        for note in self.folder.notes:
            self.progress.note(note)
        if self.checkpoint is None:
            self._save()
        else:
            self._load(self.checkpoint)
        self._best = self._best_step()
        if self.loop.finished < self.steps:
            self.folder.reopen()
        self.progress.start(self.loop.finished, self.seconds)

    def _step(self) -> StepReport:
        """One step; if it fails before anything was learned, the steps before it are saved."""
        try:
            return self.loop.step()
        except EtudeError as error:
            if error.intact:
                with suppress(Exception):  # the first error is the one to tell, with the checkpoint that there is
                    self._save()
            raise

    def _log(self, report: StepReport) -> None:
        step, seconds = self.loop.finished, self.seconds
        report.metrics |= self.callbacks.stepped(report.metrics)
        for episode in report.episodes[: self.episodes_per_step]:
            self.folder.log("episodes").append({"step": step, **episode})
        members = {"members": report.members} if report.members else {}
        self.folder.log("metrics").append({"step": step, "seconds": round(seconds, 3), **report.metrics, **members})
        self.sinks.log(step, report.metrics)
        self.progress.update(step, report.metrics, seconds)
        self.folder.lock.beat()

    def _why(self, report: StepReport) -> str | None:
        """Why the run ends here, if it does."""
        seconds = monotonic() - self._began
        return self.stopping.why(report.metrics, seconds, self.loop.finished) or self.callbacks.why

    def _look(self) -> None:
        """Evaluate in the middle of training, where this step is one for it."""
        step = self.loop.finished
        if self.look is None or self.look_every is None or step % self.look_every:
            return
        found = self.look()
        added = self.callbacks.evaluated(found.means)
        self.folder.log("evaluations").append(found.line(step, added))
        self.stopping.look({**found.means, "callbacks": added})
        self.progress.looked(step, flat(found.means))
        self._best = self._best_step()
        if self._best == step:
            self._save()
        self.folder.lock.beat()

    def _best_step(self) -> int | None:
        """The step whose checkpoint stays for what it scored."""
        lines = JsonLines.read(self.folder.path / "evaluations.jsonl")
        found = best(lines, self.keep_best) if self.keep_best else None
        return found.step if found else None

    def _finish(self) -> RunResult:
        result = self._result("finished")
        if not self.folder.finished:
            self.folder.finish({"step": result.step, "seconds": round(result.seconds, 3)})
        return result

    def _result(self, status: Literal["finished", "stopped", "interrupted"]) -> RunResult:
        assert self.checkpoint is not None
        return RunResult(status, self.loop.finished, self.steps, self.seconds, self.folder.path, self.checkpoint)

    # Checkpoints

    def _due(self) -> bool:
        if self.checkpoint_every is not None:
            return self.loop.finished % self.checkpoint_every == 0
        return monotonic() - self._saved_at >= max(SELDOM, self._cost / COST)

    def _save(self) -> None:
        """Write a checkpoint, unless this step has one."""
        if self.checkpoint is not None and checkpoints.step_of(self.checkpoint) == self.loop.finished:
            return
        began = monotonic()
        for log in self.folder.logs.values():
            log.sync()
        self.checkpoint = checkpoints.write(self._root, self.loop.finished, self._write)
        checkpoints.prune(self._root, self.keep, self._best)
        self._saved_at = monotonic()
        self._cost = self._saved_at - began
        self.callbacks.saved(self.checkpoint)

    def _write(self, folder: Path) -> None:
        self.loop.save(folder)
        logs = {name: log.position for name, log in self.folder.logs.items()}
        record = {"step": self.loop.finished, "seconds": round(self.seconds, 3), "logs": logs}
        checkpoints.save_json(folder / "run.json", record)

    def _load(self, checkpoint: Path) -> None:
        """Go back to a checkpoint: the loop first, then clock and logs, so that a refusal changes nothing."""
        record = checkpoints.load_json(checkpoint / "run.json")
        try:
            self.loop.load(checkpoint)
        except EtudeError:
            raise
        except Exception as error:
            raise CheckpointError(
                f"{checkpoint} does not fit this run ({type(error).__name__}: {error}); "
                "it was written by another method, model or version."
            ) from error
        if self.loop.finished != record["step"]:
            raise CheckpointError(f"{checkpoint} put the loop at step {self.loop.finished}, not {record['step']}.")
        self._check_whole(checkpoint)
        self._before, self._began = record["seconds"], monotonic()
        for name in [*self.folder.logs, *record["logs"]]:
            if not self.folder.log(name).cut(record["logs"].get(name, 0)):
                self.progress.note(f"{name}.jsonl has lost lines since {checkpoint.name} was written; it has a gap.")
        looked = self.folder.logs.get("evaluations")
        self.stopping.again(
            JsonLines.read(self.folder.log("metrics").path), JsonLines.read(looked.path) if looked else ()
        )

    def _check_whole(self, checkpoint: Path) -> None:
        """All that a checkpoint has is in the loop again: saved anew, each of its values is what it was.

        Raises: CheckpointError for what was not restored. Where the disk has no room for it, nothing is looked at.
        """
        again = self._root / f"tmp-{self.loop.finished}"
        if not round_trip.room(self._root, checkpoint):
            return
        disk.remove(again)
        disk.make_folder(again)
        try:
            self.loop.save(again)
            lost = round_trip.unlike(checkpoint, again)
        finally:
            disk.remove(again)
        if lost:
            raise CheckpointError(
                f"{checkpoint} was read, and {lost} is not what it says: the run would go on from another state than "
                "it had. Nothing was trained."
            )

    # What is said when it stops

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Make every way to stop early say what is safe and how to go on."""
        try:
            with disk.when_full(lambda: f"free some space first. {self._safe()}"):
                yield
        except (Interrupted, RunFolderError):
            raise
        except KeyboardInterrupt:
            raise self._interrupted(signal.SIGINT, "at once, ") from None
        except NonFiniteError as error:
            _add(error, self._keep_failure(error))
            _add(error, self._safe())
            raise
        except Exception as error:
            # a metric to stop at that the first step has not: whoever went on would be told the same
            vain = isinstance(error, UnknownNameError) and self.loop.finished <= 1
            _add(error, f"Nothing is lost in {self.folder.path}: start again." if vain else self._safe())
            raise

    def _safe(self) -> str:
        if self.checkpoint is None:
            return f"Nothing was trained yet in {self.folder.path}."
        step = checkpoints.step_of(self.checkpoint)
        return f"The run is safe at step {step} ({self.checkpoint}); go on with: {self.folder.resume_command}"

    def _interrupted(self, number: int, how: str = "") -> Interrupted:
        sentence = f"Stopped by {signal.Signals(number).name} {how}after step {self.loop.finished} of {self.steps}."
        result = self._result("interrupted") if self.checkpoint is not None else None
        return Interrupted(f"{sentence} {self._safe()}", number, result)

    def _keep_failure(self, error: NonFiniteError) -> str:
        """Save the state that could not go on, and the batch if the loop left it as `error.batch`, for replay."""
        root = self.folder.path / "failure"

        def save(folder: Path) -> None:
            self.loop.save(folder)
            if batch := getattr(error, "batch", None):
                checkpoints.save_tensors(folder / "batch.safetensors", batch)

        try:
            disk.remove(root)
            return f"What it happened with is in {checkpoints.write(root, self.loop.finished, save)}."
        except Exception as second:
            return f"What it happened with could not be saved ({second})."


def _add(error: Exception, sentence: str) -> None:
    """Add a sentence to an error: to its message if it is etude's own, else as a note below the traceback."""
    if not isinstance(error, EtudeError):
        error.add_note(sentence)
    elif isinstance(error, ImportError):
        error.msg = f"{error} {sentence}"
    else:
        error.args = (f"{error} {sentence}", *error.args[1:])
