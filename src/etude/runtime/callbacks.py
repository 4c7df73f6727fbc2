"""What is told how a run goes: an object with any of `on_start`, `on_step`, `on_evaluation`, `on_checkpoint`, `on_end`.

    class Slack:
        def on_evaluation(self, run):
            post(f"{run.folder.name}, step {run.step}: {run.evaluation['test/pass@1']:.2f}")
            if run.evaluation["test/pass@1"] < 0.1:
                run.stop("it forgot everything")

A callback reads the run. It can end it and add metrics, and nothing else of it reaches the training.
"""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

from etude.core.errors import ConfigError, UnknownNameError
from etude.core.loop import Loop

EVENTS = ("on_start", "on_step", "on_evaluation", "on_checkpoint", "on_end")
ADDING = ("on_step", "on_evaluation")
"""When metrics can be added: to the line of `metrics.jsonl` and of `evaluations.jsonl` that is about to be written."""


class RunState:
    """A run as callbacks see it.

    Args:
        folder: of the run.
        step: training steps done so far, of `steps`.
        metrics: of the last step, as in `metrics.jsonl`.
        evaluation: of the last evaluation, by split, as in 'test/pass@1'; of a population the means over members.
        checkpoint: the newest one.
        policy: what is trained: a `LanguagePolicy`, or in control the module of all members' policies.
        why: why the run ended, in `on_end`; None if it came to its last step.
    """

    def __init__(self, folder: Path, loop: Loop, steps: int) -> None:
        self.folder, self.steps = folder, steps
        self.metrics: Mapping[str, float] = {}
        self.evaluation: dict[str, float] = {}
        self.checkpoint: Path | None = None
        self.why: str | None = None
        self._loop = loop
        self._event = ""
        self._stopped: str | None = None
        self._added: dict[str, float] = {}

    @property
    def step(self) -> int:
        return self._loop.finished

    @property
    def policy(self) -> Any:
        return getattr(self._loop, "policy", None)

    def stop(self, reason: str) -> None:
        """End the run before its next step, with a checkpoint, its evaluation and its page."""
        self._stopped = self._stopped or str(reason)

    def add(self, name: str, value: float) -> None:
        """A metric of this step, or of this evaluation. Raises ConfigError for a name or a moment that there is not."""
        if self._event not in ADDING:
            raise ConfigError(f"Metrics can be added in {' and '.join(ADDING)}, not in {self._event or 'between'}.")
        if self._event == "on_step" and name in {"step", "seconds", "members", *self.metrics}:
            raise ConfigError(f"There is a metric {name} already: give what you add a name of its own.")
        self._added[name] = float(value)


class Callback:
    """What a callback may have; to inherit from it is not needed. Each method is given the run as it stands."""

    def on_start(self, run: RunState) -> None:
        """A session of the run begins: a new one at step 0, or one that goes on."""

    def on_step(self, run: RunState) -> None:
        """A training step is done; its metrics are about to be written."""

    def on_evaluation(self, run: RunState) -> None:
        """What is trained was evaluated: before, in between (`--evaluate-every`), or after."""

    def on_checkpoint(self, run: RunState) -> None:
        """A checkpoint was written."""

    def on_end(self, run: RunState) -> None:
        """The session is over, evaluation included: at its last step, or as `run.why` says."""


class Callbacks:
    """Several callbacks as one that never raises: what one of them raises is said, with its name.

    Args:
        callbacks: objects with any of the methods in `EVENTS`.
        state: what they are shown.
        say: takes the sentence about one that failed.
    """

    def __init__(self, callbacks: Sequence[Any], state: RunState, say: Callable[[str], None]) -> None:
        self.callbacks, self.state, self._say = list(callbacks), state, say
        self._failed: Counter[str] = Counter()

    @property
    def why(self) -> str | None:
        """Why the run is to end, if one of them said so."""
        return None if self.state._stopped is None else f"Stopped early: {self.state._stopped.rstrip('.')}."

    def tell(self, event: str) -> dict[str, float]:
        """Call a method of all that have it; returns the metrics that they added."""
        if not self.callbacks:
            return {}
        self.state._event, self.state._added = event, {}
        with undisturbed():
            for callback in self.callbacks:
                if hasattr(callback, event):
                    self._call(callback, event)
        self.state._event = ""
        return self.state._added

    def stepped(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """A step is done; returns the metrics that were added."""
        self.state.metrics = dict(metrics)
        added = self.tell("on_step")
        self.state.metrics = {**metrics, **added}
        return added

    def evaluated(self, found: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
        """What is trained was evaluated, {split: {metric: number, or a list over members}}; as `stepped`."""
        self.state.evaluation = flat(found)
        return self.tell("on_evaluation")

    def saved(self, checkpoint: Path) -> None:
        """There is a new checkpoint."""
        self.state.checkpoint = checkpoint
        self.tell("on_checkpoint")

    def ended(self, why: str | None) -> None:
        """The run is over; says how often callbacks failed, where that was not said each time."""
        self.state.why = why
        self.tell("on_end")
        for name, count in self._failed.items():
            if count > 1:
                self._say(f"The callback {name} failed {count} times.")
        self._failed.clear()

    def _call(self, callback: Any, event: str) -> None:
        try:
            getattr(callback, event)(self.state)
        except Exception as error:
            name = f"{name_of(callback)}.{event}"
            self._failed[name] += 1
            if self._failed[name] == 1:
                self._say(f"Warning: the callback {name} failed ({type(error).__name__}: {error}). The run goes on.")


def checked(callback: Any) -> Any:
    """A callback as it will be called; a class is made an object.

    Raises: ConfigError for what has none of the methods; UnknownNameError, with the nearest, for another `on_...`.
    """
    name = name_of(callback)
    if inspect.isclass(callback):
        try:
            inspect.signature(callback).bind()
        except TypeError as error:
            raise ConfigError(
                f"The callback {name} cannot be made without arguments ({error}): give an object."
            ) from None
        callback = callback()
    own = [x for x in dir(callback) if x.startswith("on_") and callable(getattr(callback, x))]
    for method in own:
        if method not in EVENTS:
            raise UnknownNameError(f"event for the callback {name}", method, EVENTS, f"There are: {', '.join(EVENTS)}.")
    if not own:
        raise ConfigError(f"The callback {name} has none of the methods {', '.join(EVENTS)}, so nothing would call it.")
    return callback


def name_of(callback: Any) -> str:
    """What messages call it."""
    kind = callback if inspect.isclass(callback) or inspect.isfunction(callback) else type(callback)
    return str(kind.__name__)


def flat(found: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Metrics by split, as in 'test/pass@1'; of a population the means over members. What was logged as null is NaN."""
    return {
        f"{split}/{name}": fmean(math.nan if x is None else x for x in (value if isinstance(value, list) else [value]))
        for split, metrics in found.items()
        for name, value in metrics.items()
    }


@contextmanager
def undisturbed() -> Iterator[None]:
    """Leave the random numbers of torch, numpy and Python as they are, whatever is drawn inside."""
    import random

    import numpy as np
    import torch

    legacy, plain = np.random.get_state(), random.getstate()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        np.random.set_state(legacy)
        random.setstate(plain)
