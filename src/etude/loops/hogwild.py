"""Workers that learn side by side on the same numbers, without locks (arXiv:1602.01783; arXiv:1106.5730).

Every worker is a process with an ordinary loop of its own, of one member. Before a segment it copies the common numbers
into its networks, acts and differentiates with these, and takes its step on the common ones (`RMSProp`), whatever
others wrote there meanwhile. So what acts is what learns, and between two workers nothing waits but for the number of
the next segment, by which all go: schedules, chances to try something, slow copies. After a training step's segments
they meet, and only then anything is reported, saved or evaluated.

One worker does what its loop does alone, bit for bit. Of several nobody says in which order they write: their numbers
are not the same twice, a resumed run goes on from the same weights and episodes and not to the same numbers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

from torch import Tensor

from etude.core.errors import CheckpointError
from etude.core.loop import StepReport
from etude.core.population import FlatParameters
from etude.loops.block import Block
from etude.loops.off_policy import OffPolicyLoop
from etude.loops.on_policy import OnPolicyLoop
from etude.runtime.checkpoints import load_json, save_json
from etude.runtime.common import Common, Count
from etude.runtime.executors.roles import Dispatch, Executor, dispatched

AnyLoop = OnPolicyLoop | OffPolicyLoop
OTHERS, RECORD = "workers", "hogwild.json"
"""In a checkpoint: folders of the workers after the first, whose own files are those of a loop alone; who did what."""


class Stepped(NamedTuple):
    """Numbers that steps are taken on: the parameters, what takes the steps, the slow copy."""

    parameters: FlatParameters
    stepper: Any
    slow: FlatParameters | None


def stepped(loop: AnyLoop) -> dict[str, Stepped]:
    """Everything of a loop that is trained, by name."""
    if isinstance(loop, OnPolicyLoop):
        return {"policy": Stepped(loop.parameters, loop.updater.optimizer, None)}
    trainers = loop.updater.trainers.items()
    return {k: Stepped(t.parameters, t.stepper, t.slow if t.target is not None else None) for k, t in trainers}


def sizes_of(loop: AnyLoop) -> dict[str, int]:
    """How many common numbers there are, by name."""
    found = dict[str, int]()
    for name, one in stepped(loop).items():
        kinds = ("values", "square") if one.slow is None else ("values", "square", "slow")
        found |= {f"{name}.{kind}": one.parameters.values.numel() for kind in kinds}
    return found


def segments_of(loop: AnyLoop) -> tuple[int, int]:
    """How many segments a training step has, and of how many steps in every environment each is."""
    experience = cast(Any, loop.method.experience)
    if isinstance(loop, OnPolicyLoop):
        return experience.updates, experience.steps
    return max(1, loop.block // (experience.steps * experience.environments)), experience.steps


class Worker:
    """A role: one worker. `path`: of the common numbers."""

    def __init__(self, loop: AnyLoop, path: str, rank: int) -> None:
        self.loop, self.rank = loop, rank
        self.common, self.count = Common(path, sizes_of(loop)), Count(path)
        self.stepped = stepped(loop)
        for name, one in self.stepped.items():
            one.stepper.join(self._of(name, "values"), self._of(name, "square"))
        self.taken, self.updates = 0, 0  # segments, and updates, of this worker

    def _of(self, name: str, kind: str) -> Tensor:
        return self.common[f"{name}.{kind}"][None]

    @dispatched(Dispatch.BROADCAST)
    def advance(self, finished: int, until: int) -> dict[str, Any]:
        """Segments up to number `until`, those that no other worker took, in the training step after `finished`."""
        self.loop.finished = finished
        loop, numbers = self.loop, self._numbers(until)
        block = loop.advance(numbers) if isinstance(loop, OnPolicyLoop) else loop.advance(numbers, others=True)
        noticed = loop.noticed() if isinstance(loop, OffPolicyLoop) else {}
        return {"block": block.to_json(), "noticed": noticed, "taken": self.taken}

    def _numbers(self, until: int) -> Iterator[int]:
        length = 1 if isinstance(self.loop, OnPolicyLoop) else segments_of(self.loop)[1]
        while (number := self.count.take(until)) is not None:
            before = self._begin(number - self.taken)
            for _ in range(length):
                yield number
            self._end(number - self.taken, before)
            self.taken += 1

    def _begin(self, others: int) -> int:
        """Take what is common, and count what others did."""
        for name, one in self.stepped.items():
            one.parameters.values.copy_(self._of(name, "values"))
            if one.slow is not None:
                one.slow.values.copy_(self._of(name, "slow"))
        if isinstance(self.loop, OnPolicyLoop):
            return 0
        experience = cast(Any, self.loop.method.experience)
        cast(Any, self.loop.collector).elsewhere = others * experience.steps * experience.environments
        self.loop.updater.updates = self.updates + others
        return self.loop.updater.updates

    def _end(self, others: int, before: int) -> None:
        """Give slow copies that moved to the others."""
        if isinstance(self.loop, OnPolicyLoop):
            return
        now = self.loop.updater.updates
        self.updates = now - others
        for name, one in self.stepped.items():
            target = self.loop.updater.trainers[name].learning.target
            if one.slow is not None and target is not None and now // target.every > before // target.every:
                self._of(name, "slow").copy_(one.slow.values)

    @dispatched(Dispatch.BROADCAST)
    def save(self, folder: str, told: dict[str, Any]) -> dict[str, Any]:
        """Write this worker's part of a checkpoint; `told` is what the run knows of all of them."""
        loop, place = self.loop, self._place(folder)
        place.mkdir(parents=True, exist_ok=True)
        self._begin(0)
        loop.finished = told["finished"]
        for kept, own in zip(loop.recent, told["recent"], strict=True):
            kept.clear()
            kept.extend((r, n) for r, n in own)
        if isinstance(loop, OnPolicyLoop):
            loop.acted = told["acted"]
        else:
            loop.updater.updates = told["updates"]
        loop.save(place)
        return {"taken": self.taken, "updates": self.updates}

    @dispatched(Dispatch.BROADCAST)
    def load(self, folder: str, taken: list[int], updates: list[int]) -> dict[str, Any]:
        """Undo `save`."""
        self.loop.load(self._place(folder))
        self.taken, self.updates = taken[self.rank], updates[self.rank]
        return {}

    def _place(self, folder: str) -> Path:
        return Path(folder) if self.rank == 0 else Path(folder) / OTHERS / str(self.rank)


class HogwildLoop:
    """A run of several workers: a loop that asks them, and reports and saves what they came to together.

    Args:
        inner: the loop of one process, which acts and learns nothing here: it holds what is evaluated and saved.
        path: of the common numbers, made for `sizes_of(inner)`, which it removes in the end.
        workers: plays the role `Worker`.
    """

    def __init__(self, inner: AnyLoop, path: str, workers: Executor) -> None:
        self.inner, self.path, self.workers = inner, path, workers
        self.common, self.count = Common(path, sizes_of(inner)), Count(path)
        self.segments = segments_of(inner)[0]
        self.acted, self.updates = 0, 0
        self._give()

    def _ask(self, method: str, **arguments: Any) -> list[Any]:
        """What all workers answer. They hold the common numbers then, which go with the last process that does."""
        answers: list[Any] = self.workers.ask(method, **arguments)
        Common.remove(self.path)
        return answers

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def _give(self) -> None:
        """Make what the inner loop holds the common numbers."""
        for name, one in stepped(self.inner).items():
            self.common[f"{name}.values"].copy_(one.parameters.values[0])
            self.common[f"{name}.square"].copy_(one.stepper.tensors()["square"][0])
            if one.slow is not None:
                self.common[f"{name}.slow"].copy_(one.slow.values[0])

    def _take(self) -> None:
        """Hold the common numbers, for who looks at the policy."""
        for name, one in stepped(self.inner).items():
            one.parameters.values.copy_(self.common[f"{name}.values"][None])
            if one.slow is not None:
                one.slow.values.copy_(self.common[f"{name}.slow"][None])

    def step(self) -> StepReport:
        """The segments of a training step, by whichever worker takes them.

        Raises: WorkerError if a worker is lost: what it was about to write is lost too, so none is started anew.
        """
        begun, inner = time.monotonic(), self.inner
        answers = self._ask("advance", finished=inner.finished, until=(inner.finished + 1) * self.segments)
        block = Block()
        for answer in answers:
            block.join(Block.from_json(answer["block"]))
        block.collecting /= len(answers)  # side by side
        self._take()
        self.acted += block.steps
        taken = time.monotonic() - begun
        if isinstance(inner, OnPolicyLoop):
            report = inner.report(block, taken)
        else:
            noticed = {k: max(a["noticed"].get(k, 0.0) for a in answers) for k in answers[0]["noticed"]}
            self.updates = int(noticed["updates"])
            report = inner.report(block, noticed, taken, self.acted)
        if len(answers) > 1:
            report.metrics |= {f"segments/{rank}": float(a["taken"]) for rank, a in enumerate(answers)}
        return report

    def save(self, folder: Path) -> None:
        """The files of the first worker, as of its loop alone; those of the others in folders of their own."""
        recent = [[list(x) for x in own] for own in self.inner.recent]
        told = {"finished": self.inner.finished, "recent": recent, "acted": self.acted, "updates": self.updates}
        answers = self._ask("save", folder=str(folder.resolve()), told=told)
        record = {name: [a[name] for a in answers] for name in ("taken", "updates")}
        save_json(folder / RECORD, {**record, "acted": self.acted, "all_updates": self.updates})

    def load(self, folder: Path) -> None:
        """Undo `save`. Raises CheckpointError for another number of workers."""
        if not (folder / RECORD).is_file():
            raise CheckpointError(f"{folder} was saved by one process: resume it without --on hogwild.")
        record = load_json(folder / RECORD)
        if len(record["taken"]) != self.workers.ranks:
            saved = len(record["taken"])
            raise CheckpointError(f"{folder} was saved by {saved} workers: resume it with --on hogwild:{saved}.")
        self.inner.load(folder)
        self._ask("load", folder=str(folder.resolve()), taken=record["taken"], updates=record["updates"])
        self.count.set(self.inner.finished * self.segments)
        self.acted, self.updates = record["acted"], record["all_updates"]
        self._give()

    def take(self, tensors: Any) -> None:
        """As the loop's own, for all workers."""
        self.inner.take(tensors)
        self._give()

    def close(self) -> None:
        """End the workers and the environments, and give the memory back."""
        self.workers.close()
        self.forget()
        self.inner.close()

    def forget(self) -> None:
        """Give the memory back."""
        self.count.close()
        Common.remove(self.path)
