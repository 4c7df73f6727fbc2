"""Sandboxes that wait for programs, and what runs many programs in them."""

from __future__ import annotations

import os
import selectors
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from etude.core.errors import ConfigError
from etude.runtime.sandbox import jail
from etude.runtime.sandbox.consent import FLAG, unsafe
from etude.runtime.sandbox.limits import Limits, Outcome, Program
from etude.runtime.sandbox.slot import Slot

ADVICE = f"{FLAG} runs it with your own rights, where you trust it; environment.json then says so."


class Pool:
    """Runs programs, each in a sandbox of its own that was started ahead.

    Args:
        slots: how many run at once, and how many wait; fewer where their memory would not fit.
        limits: sizes of what is mounted, and what a program may use that does not say so itself.
    """

    def __init__(self, slots: int | None = None, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.slots = min(slots or os.cpu_count() or 1, slots_that_fit(self.limits))
        self._warm: deque[Slot] = deque()
        self._lock = threading.Lock()
        self._ends = weakref.finalize(self, _close_all, self._warm)

    def warm(self) -> None:
        """Start those that wait."""
        self._warm.extend(Slot(self.limits) for _ in range(self.slots - len(self._warm)))

    def run(self, programs: Sequence[Program]) -> list[Outcome]:
        """What comes of each program, in their order. Programs that are equal are run once.

        Raises: Walled, a sentence, if no sandbox can be started.
        """
        different = list(dict.fromkeys(_key(p) for p in programs))
        first = {_key(p): p for p in reversed(programs)}
        with self._lock:
            found = dict(zip(different, self._run([first[key] for key in different])))
        return [found[_key(p)] for p in programs]

    def _run(self, programs: Sequence[Program]) -> list[Outcome]:
        found: dict[int, Outcome] = {}
        waiting, busy, done = deque(enumerate(programs)), dict[Slot, int](), list[Slot]()
        with selectors.DefaultSelector() as selector:
            try:
                while waiting or busy:
                    while waiting and len(busy) < self.slots:
                        number, program = waiting.popleft()
                        busy[slot := self._taken(more=len(waiting))] = number
                        for descriptor in slot.pipes:
                            selector.register(descriptor, selectors.EVENT_READ, slot)
                        slot.begin(program)
                    for slot in _over(selector, busy):
                        for descriptor in slot.open:
                            selector.unregister(descriptor)
                        done.append(slot)
                        found[busy.pop(slot)] = slot.outcome()
                    while len(done) > self.slots:
                        done.pop(0).close()
            finally:
                for slot in (*busy, *done):
                    slot.kill()
                for slot in (*busy, *done):
                    slot.close()
        return [found[number] for number in range(len(programs))]

    def _taken(self, more: int) -> Slot:
        """A sandbox that waits. Another one is started in its place, while its program runs."""
        usable = None
        while self._warm and usable is None:
            slot = self._warm.popleft()
            if slot.usable:
                usable = slot
            else:
                slot.close()
        taken = usable or Slot(self.limits)
        while len(self._warm) < min(self.slots, max(1, more)):
            self._warm.append(Slot(self.limits))
        return taken

    def close(self) -> None:
        """End those that wait."""
        _close_all(self._warm)


def _over(selector: selectors.BaseSelector, busy: dict[Slot, int]) -> list[Slot]:
    """Those that are over, after something happened or the time of one was up."""
    left = min(slot.due for slot in busy) - time.monotonic()
    for key, _ in selector.select(max(0.0, min(left, 0.05 if any(s.writing for s in busy) else left))):
        slot: Slot = key.data
        slot.advance(key.fd)
        if key.fd not in slot.open:
            selector.unregister(key.fd)
    now = time.monotonic()
    return [slot for slot in busy if slot.over(now)]


def _key(program: Program) -> str:
    return repr(program)


def _close_all(slots: deque[Slot]) -> None:
    for slot in slots:
        slot.kill()
    while slots:
        slots.popleft().close()


def slots_that_fit(limits: Limits, available: int | None = None) -> int:
    """How many sandboxes the free memory holds, each with as much as it may take; at least one.

    >>> slots_that_fit(Limits(memory=2**28, processes=8, disk=0), available=5 * 2**30)
    2
    """
    each = limits.processes * limits.memory + limits.disk + jail.SHARED_MEMORY
    return max(1, (_available() if available is None else available) // each)


def _available() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


@cache
def _checked(owner: int, free: bool) -> Pool | str:
    """The pool of this process, once its walls were tried; or why there is none."""
    from etude.runtime.sandbox.probe import holes

    made = Pool()
    if free:
        return made
    try:
        found = holes(made)
    except jail.Walled as error:
        made.close()
        return f"{error}"
    if found:
        made.close()
        return f"a program that was tried in it {' and '.join(found)}"
    made.warm()
    return made


def shared_pool() -> Pool:
    """The pool that all code tasks, rewards and tools of this process share.

    Raises: ConfigError, where there is no sandbox or its walls do not hold, and the user did not allow to do without.
    """
    pool = _checked(os.getpid(), unsafe())
    if isinstance(pool, str):
        raise ConfigError(_refused(pool))
    return pool


def refusal() -> str | None:
    """Why code is not run here, as a sentence; None if it is."""
    pool = _checked(os.getpid(), unsafe())
    return _refused(pool) if isinstance(pool, str) else None


def _refused(why: str) -> str:
    return f"Code is not run here, for want of a sandbox: {why}. {ADVICE}"


def kind() -> str:
    """What code would be run in: 'bubblewrap 0.8.0', 'nothing (--unsafe-no-sandbox)', or why it would not."""
    if unsafe():
        return f"nothing ({FLAG})"
    try:
        return jail.version()
    except jail.Walled as error:
        return f"code is not run: {error}"
