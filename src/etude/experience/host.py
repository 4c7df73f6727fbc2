"""Environments in a worker process: it makes them of a task, and steps the one that it is told to.

A worker imports this file, so at module level it imports nothing heavy.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

from etude.core.episodes import Problem, Segment
from etude.core.errors import EtudeError
from etude.core.meters import metering
from etude.core.part import from_json
from etude.core.task import Environment, LanguageTask, StepResult
from etude.runtime.packing import Unpackable, packed, unpacked
from etude.runtime.serving import load


class Other:
    """Something that could not be sent, and looks as it did there."""

    def __init__(self, shown: str) -> None:
        self.shown = shown

    def __repr__(self) -> str:
        return self.shown


class Host:
    """Holds the environments of one batch of episodes, by their number; another batch takes their place.

    A message has `batch` and `number`, and either `problem` and `seed` of a reset, or the `segment` of a step. The
    answer has what was `returned`, the `seconds` that it took and what it `used`; what an environment `raised`; what of
    its answer is `unsent`, since it is no plain data; or a sentence that `stops` the run.

    Args:
        task: 'module:Class' of the task.
        fields: what it is made with, as `Part.to_json` says them.
    """

    greeting = None

    def __init__(self, task: str, fields: Mapping[str, Any]) -> None:
        made = load(task)(**{k: from_json(v) for k, v in fields.items()})
        assert isinstance(made, LanguageTask)
        self.task, self.batch = made, -1
        self.worlds: dict[int, Environment] = {}

    def __call__(self, message: Mapping[str, Any]) -> dict[str, Any]:
        if message["batch"] != self.batch:
            self.worlds, self.batch = {}, message["batch"]
        begun = time.monotonic()
        try:
            with metering() as meter:
                returned = self._ask(message)
        except EtudeError as error:
            return {"stops": str(error)}
        except (Exception, SystemExit) as error:
            return {"raised": f"{type(error).__name__}: {error}"}
        seconds = time.monotonic() - begun
        try:
            return {"returned": sendable(returned, "segment" in message), "seconds": seconds, "used": meter.used}
        except Unpackable as error:
            return {"unsent": str(error)}

    def _ask(self, message: Mapping[str, Any]) -> object:
        number = message["number"]
        if "problem" in message:
            world = self.worlds[number] = self.task.played_in()
            return world.reset(Problem(**unpacked(message["problem"])), message["seed"])
        return self.worlds[number].step(Segment(**unpacked(message["segment"])))


def sendable(returned: object, of_step: bool) -> Any:
    """What a reset or a step returned, as JSON values; what is not as it should be, only as it looks."""
    if not of_step:
        return _segments(returned)
    if isinstance(returned, StepResult):
        values = {k: packed(getattr(returned, k), k) for k in ("terminated", "truncated", "info")}
        if returned.player or returned.pays:
            values |= {"player": packed(returned.player, "player"), "pays": packed(dict(returned.pays), "pays")}
        return {**values, "reward": _number(returned.reward), "segments": _segments(returned.segments)}
    return {"other": repr(returned)}


def received(sent: Any) -> Any:
    """What `sendable` made JSON values of."""
    if not isinstance(sent, dict) or "other" in sent:
        return _received_segments(sent)
    values = {k: unpacked(sent[k]) for k in ("terminated", "truncated", "info", "player", "pays") if k in sent}
    reward: Any = Other(sent["reward"]["other"]) if isinstance(sent["reward"], dict) else sent["reward"]
    return StepResult(_received_segments(sent["segments"]), reward, **values)


def packed_fields(value: Problem | Segment, where: str, but: Sequence[str] = ()) -> dict[str, Any]:
    """All fields but these, packed. Raises Unpackable."""
    names = [f.name for f in dataclasses.fields(value) if f.name not in but]
    return {name: packed(getattr(value, name), f"{where}.{name}") for name in names}


def _segments(segments: object) -> Any:
    if not isinstance(segments, (list, tuple)):
        return {"other": repr(segments)}
    return [_segment(s) for s in segments]


def _segment(segment: object) -> dict[str, Any]:
    if not isinstance(segment, Segment):
        return {"other": repr(segment)}
    if not isinstance(segment.text, str):
        return {"text": repr(segment.text)}
    return {"segment": packed_fields(segment, "a segment")}


def _received_segments(sent: Any) -> Any:
    if isinstance(sent, dict):
        return Other(sent["other"])
    return [_received_segment(s) for s in sent]


def _received_segment(sent: Mapping[str, Any]) -> Any:
    if "other" in sent:
        return Other(sent["other"])
    if "text" in sent:
        unreadable: Any = Other(sent["text"])
        return Segment("user", unreadable)
    return Segment(**unpacked(sent["segment"]))


def _number(reward: object) -> Any:
    if isinstance(reward, str) or not hasattr(reward, "__float__"):
        return {"other": repr(reward)}
    return float(reward)
