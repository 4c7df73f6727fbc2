"""The environments of episodes that are played together: in this process, or in worker processes.

Both answer many questions at once, in the order in which they were asked, whenever each answer came: who is sampled
with whom is decided by turns, never by the clock, unless the task asks for it (`by_arrival`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple, Protocol

from etude.core.episodes import Episode, Segment
from etude.core.errors import ConfigError, EnvironmentFault, EtudeError
from etude.core.meters import Used, metering
from etude.core.part import from_json, to_json
from etude.core.registry import reference
from etude.core.task import LanguageTask, Task
from etude.experience.deadline import deadline
from etude.experience.host import packed_fields, received
from etude.runtime.packing import Unpackable
from etude.runtime.serving import CallFailed, Reason
from etude.runtime.workers import Job, Jobs, Pool, Worker

ATTEMPTS = 2
"""How often a call is tried whose process dies: once more, since something else may have ended it."""
KEPT = 2
"""Tasks whose idle worker processes are kept for the next episodes."""


class Answer(NamedTuple):
    """What came of a reset or a step.

    Args:
        returned: what the environment returned, whatever that is; None where it failed.
        seconds: what it took.
        fault: why the episode is lost, '' if it is not.
        error: what was raised in this process.
        used: what it says that it took; None where it says nothing.
    """

    returned: Any
    seconds: float = 0.0
    fault: str = ""
    error: Exception | None = None
    used: Used | None = None


class Worlds(Protocol):
    """The environments of some episodes, by number."""

    def reset(self, which: Sequence[int]) -> Iterator[Answer]:
        """Begin these episodes."""
        ...

    def tell(self, which: Sequence[int], said: Sequence[Segment]) -> None:
        """Let these environments answer what the policy said."""
        ...

    def hear(self) -> Iterator[tuple[int, Answer]]:
        """What environments answered that were told something: all of them, in order; or, where the task wants that,
        those whose answers are here."""
        ...


@contextmanager
def worlds_of(task: LanguageTask, episodes: Sequence[Episode]) -> Iterator[Worlds]:
    """An environment for each episode, where the task says that they are."""
    if not task.workers:
        if task.by_arrival:
            raise ConfigError(f"Environments of task {task.id!r} go on by arrival, which needs `workers` of their own.")
        yield Here(task, episodes)
        return
    key = _key(task)
    pool = _idle[key].pop() if _idle.get(key) else _pool(key)
    try:
        with pool.jobs() as jobs:
            yield Hosted(task, episodes, pool, jobs)
    finally:
        _keep(key, pool)


def whose(task: LanguageTask, episode: Episode) -> str:
    """The start of a sentence about an environment: whose it is, and where in the episode."""
    turn = sum(s.role == "assistant" for s in episode.segments)
    return (
        f"The environment of task {task.id or type(task).__name__!r}, for problem {episode.problem.id!r}, "
        f"{f'at turn {turn}' if turn else 'when it was reset'},"
    )


class Here:
    """Environments in this process, one after another. One that hangs stops the run."""

    def __init__(self, task: LanguageTask, episodes: Sequence[Episode]) -> None:
        self.task, self.episodes = task, episodes
        self.worlds = [task.played_in() for _ in episodes]
        self.told: list[tuple[int, Segment]] = []

    def reset(self, which: Sequence[int]) -> Iterator[Answer]:
        """Raises EnvironmentFault for one that hangs, ConfigError where nothing can stop it."""
        for i in which:
            episode = self.episodes[i]
            yield self._call(i, self.worlds[i].reset, episode.problem, episode.seed)

    def tell(self, which: Sequence[int], said: Sequence[Segment]) -> None:
        """They are stepped when their answers are heard."""
        self.told += zip(which, said, strict=True)
        self.task.expect([(self.episodes[i].problem, segment.text) for i, segment in zip(which, said)])

    def hear(self) -> Iterator[tuple[int, Answer]]:
        """Raises as `reset` does."""
        told, self.told = self.told, []
        for i, segment in told:
            yield i, self._call(i, self.worlds[i].step, segment)

    def _call(self, i: int, ask: Any, *arguments: object) -> Answer:
        begun = time.monotonic()
        try:
            with metering() as meter, deadline(self.task.step_timeout, lambda: self._hangs(i)):
                returned = ask(*arguments)
        except EtudeError:
            raise
        except Exception as error:
            return Answer(None, fault=f"{type(error).__name__}: {error}", error=error)
        return Answer(returned, time.monotonic() - begun, used=meter.used)

    def _hangs(self, i: int) -> EnvironmentFault:
        return EnvironmentFault(
            f"{whose(self.task, self.episodes[i])} ({type(self.worlds[i]).__name__}) did not answer within "
            f"{self.task.step_timeout:g} s: it hangs. If it is only slow, give its task a larger `step_timeout`."
        )


class Life(NamedTuple):
    """What an environment in a worker went through, to be gone through again: messages, and what they came to."""

    said: list[dict[str, Any]]
    seen: list[Any]


class Hosted:
    """Environments in worker processes, many at once, each call with a deadline.

    An environment lives in the process that reset it. When a process is gone, each environment that lived there goes
    through its life again in the next one, reset and steps, as soon as it is needed; if it does not answer as it did
    before, it depends on more than its seed and what was said, and its episode is lost. A call whose process dies is
    made a second time; an episode is lost that dies again, or hangs.
    """

    def __init__(self, task: LanguageTask, episodes: Sequence[Episode], pool: Pool, jobs: Jobs[Answer]) -> None:
        self.task, self.episodes, self.pool, self.jobs = task, episodes, pool, jobs
        self.batch = next(_batches)
        self.lives = [Life([], []) for _ in episodes]
        self.homes: dict[int, int] = {}
        self.told: list[int] = []

    def reset(self, which: Sequence[int]) -> Iterator[Answer]:
        """Raises EnvironmentFault for what cannot be sent, ConfigError if the task cannot be loaded."""
        for i in which:
            self.jobs.add(i, i, self._job(i, self._opening(i)))
        return (answer for _, answer in self.jobs.all_of(which))

    def tell(self, which: Sequence[int], said: Sequence[Segment]) -> None:
        """Raises EnvironmentFault for what cannot be sent."""
        for i, segment in zip(which, said, strict=True):
            self.jobs.add(i, i, self._job(i, {"segment": self._sent(i, segment, "segment", ("info",))}))
            self.told.append(i)

    def hear(self) -> Iterator[tuple[int, Answer]]:
        """Raises as `reset` does."""
        told, self.told = self.told, []
        return iter(sorted(self.jobs.ended().items())) if self.task.by_arrival else self.jobs.all_of(told)

    def _opening(self, i: int) -> dict[str, Any]:
        episode = self.episodes[i]
        return {"problem": self._sent(i, episode.problem, "problem"), "seed": episode.seed}

    def _sent(self, i: int, thing: Any, what: str, but: Sequence[str] = ()) -> dict[str, Any]:
        try:
            return packed_fields(thing, what, but)
        except Unpackable as error:
            raise EnvironmentFault(
                f"{whose(self.task, self.episodes[i])} runs in a process of its own (workers={self.task.workers}), "
                f"which gets plain data, and {error}: make it text, numbers, lists or dicts."
            ) from None

    def _job(self, i: int, message: dict[str, Any]) -> Job[Answer]:
        """One call of an environment, and before it what brings the environment back that a process took along."""
        worker, life, failure = self.pool.place(i), self.lives[i], ""
        for _ in range(ATTEMPTS):
            try:
                if not (yield from self._back(i, worker)):
                    return Answer(None, fault=STRAYED)
                reply = yield from self._asked(i, message)
            except CallFailed as failed:
                failure = f"it {failed.detail}"
                if failed.reason is Reason.DIED:
                    continue
                break
            life.said.append(message)
            life.seen.append(_seen(reply))
            return self._answer(i, reply)
        return Answer(None, fault=failure)

    def _back(self, i: int, worker: Worker) -> Job[bool]:
        """Go through a life again if it was another process's; whether it went as before."""
        if not worker.running:
            worker.launch()
        if self.homes.get(i) == worker.starts:
            return True
        for message, seen in zip(*self.lives[i]):
            if _seen((yield from self._asked(i, message))) != seen:
                return False
        self.homes[i] = worker.starts
        return True

    def _asked(self, i: int, message: dict[str, Any]) -> Job[Any]:
        reply = yield {"batch": self.batch, "number": i, **message}, self.task.step_timeout
        return reply

    def _answer(self, i: int, reply: Mapping[str, Any]) -> Answer:
        if "stops" in reply:
            raise EnvironmentFault(reply["stops"])
        if "unsent" in reply:
            raise EnvironmentFault(
                f"{whose(self.task, self.episodes[i])} returned what cannot be sent from its process: "
                f"{reply['unsent']}. Make it text, numbers, lists or dicts, or set the task's `workers` to 0."
            )
        if "raised" in reply:
            return Answer(None, fault=reply["raised"])
        return Answer(
            received(reply["returned"]), reply["seconds"], used=None if reply["used"] is None else Used(*reply["used"])
        )


STRAYED = (
    "it lost its process, and did not answer as before when what was said was said to it again in the next one, so it "
    "cannot go on: it depends on more than its seed and what was said"
)


def _seen(reply: Mapping[str, Any]) -> Any:
    """What the policy and its reward saw of a reply. `info` may tell the time."""
    returned = reply.get("returned", reply)
    return {k: v for k, v in returned.items() if k != "info"} if isinstance(returned, dict) else returned


# Worker processes that are kept

Key = tuple[type[LanguageTask], str, str, int]

_idle: dict[Key, list[Pool]] = {}
_batches = count()


def _key(task: LanguageTask) -> Key:
    """What a task's worker processes are made from. Raises ConfigError for a task that only lives in this process."""
    name, fields = made_from(
        task, f"The environments of task {{}} are stepped in processes of their own (workers={task.workers})",
        "set its `workers` to 0",
    )  # fmt: skip
    return type(task), name, fields, task.workers


def made_from(task: Task, what: str, instead: str) -> tuple[str, str]:
    """'module:Class' of a task and its fields as JSON, from which another process can make it.

    Args:
        what, instead: the beginning of the sentence, {} for the task, and its end, where that cannot be.

    Raises: ConfigError for a task that only lives in this process.
    """
    cls, name = type(task), reference(type(task))
    why = f"{cls.__qualname__} is no class of a module or file"
    if name is not None:
        try:
            fields = json.dumps(to_json(task.fields()))
            if cls(**{k: from_json(v) for k, v in json.loads(fields).items()}) == task:
                return name, fields
            why = "not all of its fields are plain data"
        except TypeError as error:
            why = str(error)
    raise ConfigError(
        f"{what.format(repr(task.id or cls.__name__))}, which make the task by its name and its fields: {why}. Put it "
        f"in a file and name it as file.py:name, or {instead}."
    )


def _pool(key: Key) -> Pool:
    cls, name, fields, workers = key
    arguments = {"task": name, "fields": json.loads(fields)}
    label = f"The environment of {cls.id or name}"
    return Pool(lambda: Worker("etude.experience.host:Host", arguments, label, "etude.environments"), workers)


def _keep(key: Key, pool: Pool) -> None:
    """Keep a pool for the next episodes of its task; the processes of tasks that were played before the last end."""
    _idle[key] = [*_idle.pop(key, []), pool]
    for old in [*_idle][:-KEPT]:
        for forgotten in _idle.pop(old):
            forgotten.close()
