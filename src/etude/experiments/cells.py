"""Cells of experiments: an experiment that was stopped goes on at the first cell that is not done.

A training is a run folder, and goes on where it was itself. A computation that has no loop, on tables or Gaussians, is
one result in a file (`recorded`).
"""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from etude.core.episodes import Problem
from etude.core.loop import Loop, StepReport
from etude.core.method import Method
from etude.core.task import Task
from etude.runtime.cores import cores

if TYPE_CHECKING:
    from etude.loops.language import LanguageLoop

In = TypeVar("In")
Out = TypeVar("Out")
Metrics = dict[str, Any]
_root: Path | None = None
"""Where run folders are kept; None: nowhere, they are gone when they are done."""
_each: Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]] | None = None
"""What does the jobs of `spread`; None: processes of this machine."""
_at_a_time: int | None = None
"""How many of those; None: as many as there are cores."""


@contextmanager
def kept_in(root: Path) -> Iterator[None]:
    """Experiments inside keep their run folders here, and take those that are there."""
    global _root
    before = _root
    _keep(root)
    try:
        yield
    finally:
        _keep(before)


def _keep(root: Path | None) -> None:
    global _root
    _root = root


@dataclass(frozen=True)
class Cell:
    """One run to be done: picklable, so that several processes can share the work.

    Args:
        label: the arm that it belongs to.
        start: a folder or a name to load the first policy of language from.
        pool: problems to train on in place of the task's.
    """

    label: str
    method: Method
    task: Any
    seed: int
    steps: int
    start: str = "tiny"
    pool: Sequence[Problem] | None = None

    def folder(self) -> str:
        """The name of its run folder."""
        matters = [self.method.to_json(), repr(self.task), self.steps, self.start, repr(self.pool)]
        return folder_name(f"{self.label}-{self.seed}", matters)


def folder_name(label: str, matters: Sequence[object]) -> str:
    """A name by all that matters (JSON values), the library's version too, so that an equal cell is found again."""
    from etude.runtime import sources

    key = hashlib.sha256(json.dumps([*matters, *sources.key([], [], "")]).encode()).hexdigest()[:8]
    return "".join(c if c.isalnum() or c in "-+." else "-" for c in label) + f"-{key}"


def recorded(label: str, matters: Sequence[object], compute: Callable[[], Out]) -> Out:
    """What a cell without a loop comes to: JSON values, computed once where run folders are kept.

    Args:
        label: the arm that it belongs to, and its seed if it has one.
        matters: all that the result depends on, as JSON values.
    """
    if _root is None:
        return _plain(compute())
    path = _root / folder_name(label, matters) / "result.json"
    if not path.is_file():
        from etude.runtime import disk

        found = json.dumps(compute())
        disk.make_folder(path.parent)
        disk.replace_file(path, found.encode())
    result: Out = json.loads(path.read_bytes())
    return result


def _plain(found: Out) -> Out:
    """As if it had been read from a file, so that it is the same whether cells are kept or not."""
    plain: Out = json.loads(json.dumps(found))
    return plain


def trained(cell: Cell, watch: Callable[[Any], Any] | None = None) -> tuple[LanguageLoop, list[Metrics]]:
    """A run of language that has been done: its loop, and the metrics of every step."""
    loop = language_loop(cell)
    return loop, advance(loop, cell, watch)


def language_loop(cell: Cell) -> LanguageLoop:
    """Its loop before the first step, on one thread."""
    import torch

    from etude.loops.language import LanguageLoop
    from etude.policies.language import LanguagePolicy

    torch.set_num_threads(1)
    policy = LanguagePolicy.load(cell.start, device="cpu")
    return LanguageLoop(cell.method, cell.task, policy, seed=cell.seed, steps=cell.steps, pool=cell.pool)


def advance(loop: Loop, cell: Cell, watch: Callable[[Any], Any] | None = None) -> list[Metrics]:
    """Bring a new loop to the end of its run, from where it was stopped if it was; the metrics of every step.

    Args:
        watch: what is to be known of the loop after every step, under 'watched' of the metrics.
    """
    from etude.runtime.jsonl import JsonLines
    from etude.runtime.progress import Progress
    from etude.runtime.run import Run

    driven: Loop = loop if watch is None else _Watched(loop, watch)
    with _folder(cell.folder()) as path, _opened(path, cell) as folder:
        Run(folder, driven, cell.steps, progress=Progress(cell.steps, quiet=True), episodes_per_step=0).execute()
        return [{k: math.nan if v is None else v for k, v in line.items()} for line in JsonLines.read(
            path / "metrics.jsonl")]  # fmt: skip


class _Watched:
    """A loop of which more is kept than its metrics."""

    def __init__(self, loop: Loop, watch: Callable[[Any], Any]) -> None:
        self.loop, self.watch, self.headline, self.finished = loop, watch, loop.headline, loop.finished

    def step(self) -> StepReport:
        report = self.loop.step()
        report.metrics["watched"] = self.watch(self.loop)
        self.finished = self.loop.finished
        return report

    def save(self, folder: Path) -> None:
        self.loop.save(folder)

    def load(self, folder: Path) -> None:
        self.loop.load(folder)
        self.finished = self.loop.finished


@contextmanager
def _folder(name: str) -> Iterator[Path]:
    if _root is not None:
        yield _root / name
        return
    with tempfile.TemporaryDirectory() as place:
        yield Path(place) / name


def _opened(path: Path, cell: Cell) -> Any:
    """The run's folder, at its newest checkpoint if there is one."""
    from etude.runtime.folder import RunFolder

    if any((path / "checkpoints").glob("step-*")):
        return RunFolder.resume(path)
    task = cell.task.id if isinstance(cell.task, Task) else str(cell.task)
    config = {"task": task, "model": cell.start, "seed": cell.seed, "steps": cell.steps}
    return RunFolder.create(path, cell.method.to_json(), config)


@contextmanager
def model_folder(name: str) -> Iterator[Path]:
    """Where to save what the cell of this name made for others to start from; it stays where run folders do."""
    with _folder(name) as path:
        yield path / "model"


def root() -> str | None:
    """Where run folders are kept, as text that another machine understands."""
    return None if _root is None else str(_root.absolute())


@contextmanager
def spread_by(each: Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]) -> Iterator[None]:
    """Jobs of experiments inside are done by `each`, which is called as `spread`."""
    global _each
    before, _each = _each, each
    try:
        yield
    finally:
        _each = before


@contextmanager
def at_a_time(count: int | None) -> Iterator[None]:
    """Experiments inside have so many processes of this machine at once; None: as many as there are cores."""
    global _at_a_time
    before, _at_a_time = _at_a_time, count
    try:
        yield
    finally:
        _at_a_time = before


def spread(function: Callable[[In], Out], jobs: Sequence[In], workers: int | None = None) -> list[Out]:
    """`function` of every job, each in a process with one thread, or as `spread_by` says; results in order."""
    if _each is not None and len(jobs) > 1:
        return _each(function, jobs)
    count = min(len(jobs), workers or _at_a_time or cores())
    if count <= 1:
        return [function(job) for job in jobs]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=spawn, initializer=_begin, initargs=(_root,)) as pool:
        return list(pool.map(function, jobs))


def _begin(root: Path | None) -> None:
    """What a process of `spread` does first: it keeps runs where its parent does, and ends when that is gone."""
    _keep(root)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def by_label(labels: Iterable[str], results: Iterable[Out]) -> dict[str, list[Out]]:
    """Results of the same label together, in order."""
    found: dict[str, list[Out]] = {}
    for label, result in zip(labels, results, strict=True):
        found.setdefault(label, []).append(result)
    return found
