"""What locking programs in costs: how long a sandbox takes to start, programs per second, memory of 64 that wait.

    python benchmarks/sandbox.py [--programs 200] [--slots 64] [--output FILE]

A start is timed from the request until the program's answer, with no sandbox started ahead; beside it stands the bare
interpreter on the same machine, started and ended in turn with it. Memory is what the processes of the sandboxes hold
for themselves (their proportional share of what they have in common), while all of them wait.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import statistics
import subprocess
import time
from pathlib import Path

from etude.evaluation.sandbox_check.around import below
from etude.runtime.environment import record
from etude.runtime.sandbox.jail import interpreter, version
from etude.runtime.sandbox.limits import MIB, Limits, Program
from etude.runtime.sandbox.pool import Pool
from etude.runtime.sandbox.slot import Slot

CALLS = (("add", (2, 3)),)
STARTS = 30


LIMITS = Limits(seconds=20.0, memory=64 * MIB, processes=4, disk=4 * MIB)


def program(number: int) -> Program:
    """A right program, unlike the others, so that none of them is known."""
    return Program(f"def add(a, b): return a + b  # {number}", CALLS, limits=LIMITS)


def starts() -> dict[str, float]:
    """Medians in milliseconds: a program in a sandbox of its own, and the interpreter alone, in turn."""
    locked, bare = [], []
    command = [interpreter().file, "-S", "-s", "-B", "-c", "print(5)"]
    for number in range(STARTS):
        begun = time.perf_counter()
        alone(program(number))
        locked.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        subprocess.run(command, capture_output=True, check=True)
        bare.append(time.perf_counter() - begun)
    return {"locked": 1000 * statistics.median(locked), "bare": 1000 * statistics.median(bare)}


def alone(one: Program) -> None:
    """Run a program in a sandbox that is started for it."""
    slot = Slot(LIMITS)
    slot.begin(one)
    while not slot.over(time.monotonic()):
        for descriptor in select.select(list(slot.open), [], [], 1.0)[0]:
            slot.advance(descriptor)
    assert slot.outcome().answers == {0: 5}
    slot.close()


def throughput(programs: int) -> dict[str, float]:
    """Programs per second, as many at once as there are cores, and what this process computes for each."""
    pool = Pool(None, LIMITS)
    pool.warm()
    pool.run([program(-n) for n in range(1, 5)])
    before, begun = os.times(), time.perf_counter()
    outcomes = pool.run([program(n) for n in range(programs)])
    taken = time.perf_counter() - begun
    pool.close()
    own = sum(os.times()[:2]) - sum(before[:2])
    assert all(o.answers == {0: 5} for o in outcomes)
    return {"at once": pool.slots, "programs per second": programs / taken, "own ms": 1000 * own / programs}


def memory(slots: int) -> dict[str, float]:
    """MiB that the sandboxes hold while all of them wait, and what each of them adds."""
    pool = Pool(1, LIMITS)
    pool.slots = slots
    pool.warm()
    for slot in pool._warm:
        while not slot.ready:
            time.sleep(0.01)
            for descriptor in slot.pipes:
                slot.advance(descriptor)
    processes = below(os.getpid())
    held = sum(map(_share, processes)) / MIB
    pool.close()
    return {"slots": slots, "processes": len(processes), "MiB": held, "MiB each": held / slots}


def _share(process: int) -> int:
    """Bytes of a process: its own, and its share of what it has in common with others."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    found = {
        "processor": record(0)["processor"], "cores": os.cpu_count(), "load": os.getloadavg()[0], "sandbox": version(),
        "interpreter": interpreter().file, "start ms": starts(), "run": throughput(asked.programs),
        "memory": memory(asked.slots),
    }  # fmt: skip
    text = json.dumps(found, indent=1)
    print(text)
    if asked.output:
        asked.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
