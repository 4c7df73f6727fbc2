"""Whole runs on the machines of a Ray cluster (`--on ray` of `compare` and `claims run`), as many as there are CPUs.

What is trained, and where it is kept, is as with `--workers`: a run is a command of one thread, and its folder is on a
disk that all machines see. A run whose machine is lost goes on elsewhere from its last checkpoint.
"""

from __future__ import annotations

import base64
import json
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from etude.core.errors import ConfigError, EtudeError, WorkerError
from etude.experiments import cells
from etude.runs.jobs import Job, Workers, log_of, worker
from etude.runtime.executors import ray
from etude.runtime.executors.places import place_of
from etude.runtime.executors.processes import RESTARTS
from etude.runtime.serving import CallFailed, Reason
from etude.runtime.workers import Worker, wait

LONGEST = 14 * 86_400.0
"""Seconds that a run may take."""


def check(on: str) -> None:
    """Raise ConfigError for a place that whole runs cannot be done at."""
    place = place_of(on)
    if place.executor not in ("local", "ray") or place.ranks > 1:
        raise ConfigError(
            f"Whole runs are done --on local or --on ray, with --workers for how many at a time; got {on!r}."
        )
    if place.executor == "ray":
        ray.check(place.address)


def workers_of(on: str, count: int | None) -> AbstractContextManager[int | Workers | None]:
    """What does runs, for `run_jobs`: so many processes of this machine, or the machines of a cluster.

    Raises: ConfigError for another place.
    """
    check(on)
    return OnRay(place_of(on).address, count) if place_of(on).executor == "ray" else nullcontext(count)


class OnRay(Workers):
    """Machines of a cluster that do one run after another; those still at work at the end save and stop.

    Args:
        address: of the cluster; it is joined when the first run comes, or cell of an experiment.
        count: runs at a time; None: as many as the cluster has CPUs.
    """

    def __init__(self, address: str = "", count: int | None = None) -> None:
        super().__init__(count)
        self.cluster, self._count = ray.Cluster(address, cpus=count or 1), count
        self._lost: Counter[Job] = Counter()
        self._spread: Any = None

    @property
    def count(self) -> int:
        """How many at a time."""
        return self._count or self.cluster.cpus

    @count.setter
    def count(self, number: int) -> None:
        """Said by `Workers`, of this machine."""

    def __enter__(self) -> OnRay:
        super().__enter__()
        self._spread = cells.spread_by(self.each)
        self._spread.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._spread.__exit__(None, None, None)
        super().__exit__(*error)
        self.cluster.close()

    def _new(self) -> Any:
        return ray.Actor(self.cluster, "etude.runs.spread:Runner", {}, "A run", calls=2)

    def _tell(self, process: ray.Actor, job: Job) -> None:
        process.ask({"arguments": job.command(), "log": str(log_of(job).absolute())}, LONGEST)

    def _over(self, process: ray.Actor) -> bool:
        process.advance()
        return process.settled

    def _status(self, process: ray.Actor, job: Job) -> int | None:
        """Raises EtudeError where no machine can do it."""
        try:
            status = int(process.outcome())
            self.idle.append(process)
            return status
        except CallFailed as failure:
            if failure.reason is not Reason.DIED:
                raise EtudeError(f"The run of {job.arm} with seed {job.seed} {failure.detail}") from None
            self._lost[job] += 1
            if self._lost[job] > RESTARTS:
                raise WorkerError(
                    f"The run of {job.arm} with seed {job.seed} was lost {self._lost[job]} times, the last time "
                    f"because it {failure.detail} It is safe as of its last checkpoint: the same command goes on."
                ) from None
            return None

    def _end(self, processes: Sequence[Any]) -> None:
        for process in processes:
            process.close()

    def each(self, function: Callable[[Any], Any], jobs: Sequence[Any]) -> list[Any]:
        """`function` of every job, as `cells.spread`: each on a machine of the cluster, results in order."""
        actors = [
            ray.Actor(self.cluster, "etude.runs.spread:Cell", {}, "A cell of an experiment")
            for _ in range(min(self.count, len(jobs)))
        ]
        found, asked, left = dict[int, Any](), dict[Worker, int](), list(enumerate(jobs))
        lost: Counter[int] = Counter()
        try:
            while left or asked:
                for actor in actors:
                    if left and actor not in asked:
                        asked[actor], job = left.pop(0)
                        actor.ask({"call": _packed((function, job)), "root": cells.root()}, LONGEST)
                for ended in wait(asked):
                    number = asked.pop(ended)
                    try:
                        found[number] = ForkingPickler.loads(base64.b64decode(ended.outcome()))
                    except CallFailed as failure:
                        lost[number] += 1
                        if failure.reason is not Reason.DIED or lost[number] > RESTARTS:
                            raise WorkerError(f"A cell of an experiment {failure.detail}") from None
                        left.insert(0, (number, jobs[number]))
        finally:
            self._end(actors)
        return [found[number] for number in range(len(jobs))]


def _packed(values: object) -> str:
    """As the processes of a pool are given their work."""
    return base64.b64encode(ForkingPickler.dumps(values)).decode()


class Runner:
    """Does commands of `etude` on a machine of a cluster, in a process that it keeps for the next."""

    greeting = None

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __call__(self, message: Any) -> int:
        """The exit status of a command."""
        home = Path(message["log"]).parent
        if not home.is_dir():
            raise CallFailed(
                Reason.RAISED,
                f"was to be done by a machine that does not see its folder, {home}: put --out or --runs on a disk "
                "that all machines of the cluster have at the same place.",
            )
        process = self._process = self._process or worker()
        assert process.stdin is not None and process.stdout is not None
        print(json.dumps(message), file=process.stdin, flush=True)
        answer = process.stdout.readline()
        if not answer:
            self._process = None
        return int(answer) if answer else process.wait() or 1

    def end(self) -> None:
        """Let a run save and stop."""
        if (process := self._process) is not None:
            process.terminate()
            process.wait()


class Cell:
    """Computes cells of experiments on a machine of a cluster."""

    greeting = None

    def __call__(self, message: Any) -> str:
        """What a function of a job comes to."""
        function, job = ForkingPickler.loads(base64.b64decode(message["call"]))
        root = message["root"]
        with cells.kept_in(Path(root)) if root else nullcontext():
            return _packed(function(job))
