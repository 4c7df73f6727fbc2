"""What a program may use, what it is asked, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

MIB = 2**20


@dataclass(frozen=True)
class Limits:
    """What one program may use.

    Memory is counted for each process, so a sandbox can take `processes` times `memory`, and `disk` besides, whose
    files are in memory too.

    Args:
        seconds: by the clock, from when the program begins; all that it started ends then.
        memory: bytes of address space of each process.
        processes: that there may be at once, threads among them; two of them are the sandbox's own.
        disk: bytes of files in /tmp.
        output: bytes that are kept of what it prints, of either stream.
        answers: bytes of what its functions return, all together.
        files: that may be open at once.

    >>> Limits(seconds=1.5).resources["RLIMIT_CPU"]
    3
    """

    seconds: float = 5.0
    memory: int = 256 * MIB
    processes: int = 8
    disk: int = 16 * MIB
    output: int = 65_536
    answers: int = MIB
    files: int = 64

    @property
    def resources(self) -> dict[str, int]:
        """Those that the kernel counts for each process, by its names."""
        return {
            "RLIMIT_AS": self.memory, "RLIMIT_NPROC": self.processes, "RLIMIT_FSIZE": self.disk,
            "RLIMIT_NOFILE": self.files, "RLIMIT_CORE": 0, "RLIMIT_CPU": math.ceil(self.seconds) + 1,
        }  # fmt: skip


@dataclass(frozen=True)
class Program:
    """Code to run, and what to ask it.

    Args:
        code: Python.
        calls: functions that it defines, by name, each with its arguments as JSON values; called one after another.
        stdin: what it can read from its standard input.
        limits: what it may use; the size of /tmp is the pool's.
    """

    code: str
    calls: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    stdin: str = ""
    limits: Limits = Limits()

    def message(self, marker: str, resources: Mapping[str, int]) -> dict[str, Any]:
        """What is told inside. What the answers should be is not among it."""
        return {"marker": marker, "code": self.code, "calls": self.calls, "stdin": self.stdin, "resources": resources}


class Ended(StrEnum):
    """How a program came to its end. All but the first two are the program's word, or the kernel's: never a verdict."""

    DONE = "done"
    EXITED = "exited"
    RAISED = "raised"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    PROCESSES = "processes"
    DISK = "disk"
    NETWORK = "network"
    FORBIDDEN = "forbidden"
    OUTPUT = "output"
    DIED = "died"


@dataclass(frozen=True)
class Outcome:
    """What came of a program. Everything here was read by the parent, within limits; nothing of it is trusted.

    Args:
        ended: how it ended; of a call that failed, how that did, if the program itself did not.
        answers: what its functions returned, as JSON values, by the number of the call.
        faults: why a call has no answer, as a sentence, by its number.
        stdout: what it printed, decoded with replacement, cut at `Limits.output` with a mark.
        stderr: the same of its errors.
        detail: what it raised, and where.
        seconds: that it took.
    """

    ended: Ended
    answers: Mapping[int, Any] = field(default_factory=dict)
    faults: Mapping[int, str] = field(default_factory=dict)
    stdout: str = ""
    stderr: str = ""
    detail: str = ""
    seconds: float = 0.0


def agree(expected: object, found: object) -> bool:
    """Whether two JSON values are equal: numbers to 9 digits, True and False as no numbers, tuples as lists.

    >>> agree({"a": (1, 2.0)}, {"a": [1.0, 2]}), agree(1, True), agree([0.1 + 0.2], [0.3]), agree("1", 1)
    (True, False, True, False)
    """
    if isinstance(expected, bool) or isinstance(found, bool) or expected is None or found is None:
        return expected is found
    if isinstance(expected, (int, float)) and isinstance(found, (int, float)):
        return _same_number(expected, found)
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        wanted = {str(k): v for k, v in expected.items()}
        return wanted.keys() == found.keys() and all(agree(v, found[k]) for k, v in wanted.items())
    if _is_list(expected) and _is_list(found):
        assert isinstance(expected, Sequence) and isinstance(found, Sequence)
        return len(expected) == len(found) and all(agree(a, b) for a, b in zip(expected, found))
    return isinstance(expected, str) and expected == found


def _is_list(value: object) -> bool:
    return isinstance(value, (list, tuple))


def _same_number(expected: float, found: float) -> bool:
    if isinstance(expected, int) and isinstance(found, int):
        return expected == found
    try:
        return math.isclose(expected, found, rel_tol=1e-9, abs_tol=1e-12) or (expected != expected and found != found)
    except OverflowError:  # a whole number that no float can hold
        return False
