"""Where else metrics go: TensorBoard, W&B, trackio. A sink that fails is dropped; it never stops a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from etude.core.errors import EtudeError, MissingExtraError, UnknownNameError

PROJECT = "etude"


class Sink(Protocol):
    """Something that metrics are sent to, step by step. `name` is what messages call it."""

    name: str

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of one step."""
        ...

    def close(self) -> None:
        """Send what is left."""
        ...


class TensorBoardSink:
    """Event files in `tensorboard/` of the run folder; steps after the one resumed from are purged."""

    name = "tensorboard"

    def __init__(self, folder: Path, config: Mapping[str, Any], step: int) -> None:
        _need("tensorboard", "TensorBoard")
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1 if step else None)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class WandbSink:
    """A W&B run named after the folder; a resumed run goes on under the same id."""

    name = "wandb"

    def __init__(self, folder: Path, config: Mapping[str, Any], step: int) -> None:
        wandb = _need("wandb", "W&B")
        self._run = wandb.init(
            project=PROJECT, name=folder.name, id=folder.name, dir=str(folder), config=dict(config),
            resume="allow" if step else None,
        )  # fmt: skip

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


class TrackioSink:
    """A trackio run named after the folder; a resumed run goes on under the same name."""

    name = "trackio"

    def __init__(self, folder: Path, config: Mapping[str, Any], step: int) -> None:
        trackio = _need("trackio", "trackio")
        self._run = trackio.init(
            project=PROJECT, name=folder.name, config=dict(config), resume="allow" if step else "never"
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


SINKS = {sink.name: sink for sink in (TensorBoardSink, WandbSink, TrackioSink)}


def open_sinks(
    names: Iterable[str], folder: Path, config: Mapping[str, Any], step: int, say: Callable[[str], None]
) -> list[Sink]:
    """The sinks called `names`, for a run that goes on from `step`.

    Raises UnknownNameError for a name that is none, MissingExtraError if its package is not installed. A sink that
    cannot start for another reason (no network, not logged in) is reported through `say` and left out.
    """
    opened: list[Sink] = []
    for name in names:
        if name not in SINKS:
            raise UnknownNameError("sink", name, SINKS)
        try:
            opened.append(SINKS[name](folder, config, step))
        except EtudeError:
            raise
        except Exception as error:
            say(_dropped(name, error))
    return opened


class Guarded:
    """Several sinks as one that never raises: the first error of a sink is reported and ends its use.

    Args:
        sinks: where metrics go.
        say: takes the sentence about a sink that failed.
    """

    def __init__(self, sinks: Iterable[Sink], say: Callable[[str], None]) -> None:
        self.sinks = list(sinks)
        self._say = say

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Send the finite numbers among `metrics` to every sink."""
        finite = {k: float(v) for k, v in metrics.items() if isinstance(v, (int, float)) and math.isfinite(v)}
        self._each(lambda sink: sink.log(step, finite))

    def close(self) -> None:
        """Close every sink."""
        self._each(lambda sink: sink.close())
        self.sinks.clear()

    def _each(self, do: Callable[[Sink], None]) -> None:
        for sink in list(self.sinks):
            try:
                do(sink)
            except Exception as error:
                self.sinks.remove(sink)
                self._say(_dropped(sink.name, error))


def _dropped(name: str, error: Exception) -> str:
    return f"{name} failed ({type(error).__name__}: {error}) and gets no more metrics; metrics.jsonl has them all."


def _need(package: str, feature: str) -> Any:
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        raise MissingExtraError(feature, "sinks") from error
