"""Learning from logs that are larger than the memory that a run may take: 6 GB of them, and 2 GB of its own.

Logs of so many bytes (17 observations, 6 actions, episodes of 1,000 steps, all of them random numbers) are written in
pieces as mapped columns, what `etude data convert` writes too. `td3-bc` of 256-256 then learns from them in a process
of its own under a limit. That is RLIMIT_DATA, `ulimit -d`: what the process has allocated for itself, files that it
maps left out. RLIMIT_AS counts every address, those of mapped files too, whether or not any of their pages is in
memory: 6 GB could not be mapped under 2 GB of it, however little is read. Pages of a file belong to the system, which
takes them back when memory is needed. Printed as JSON: seconds until it could begin (every number is read for the
fingerprint, and twice for means and deviations) and of the updates, the memory of its own in the end, and whether a
copy of the observations would have fitted beside it, which it must not, or the limit was none.

    python benchmarks/logs_larger_than_memory.py [--gigabytes 6] [--limit 2] [--updates 2000] [--output FILE]

Files lie in TMPDIR, else /var/tmp, and are removed in the end.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _machine import processor
from gymnasium.spaces import Box

from etude.core.population import Member
from etude.core.registry import get_method
from etude.experience import mapped
from etude.experience.logs.columns import ColumnFiles
from etude.experience.logs.table import Logs, Spaces
from etude.loops.off_policy import BLOCK, OffPolicyLoop
from etude.tasks.control.logged import LoggedTask

SEEN, DONE, LENGTH, PIECE, GB = 17, 6, 1_000, 500, 10**9
"""Numbers of an observation and of an action, steps of an episode, episodes that are made together, and a unit."""
SPACES = Spaces(Box(-np.inf, np.inf, (SEEN,)), Box(-1.0, 1.0, (DONE,)), "the benchmark")
ROW = 4 * (2 * SEEN + DONE + 1) + 2
"""Bytes of a step."""


def piece(rng: np.random.Generator, episodes: int) -> Logs:
    """Episodes of random numbers, all of which a limit ends."""
    seen = rng.standard_normal((episodes, LENGTH + 1, SEEN), np.float32)
    rows = episodes * LENGTH
    done = 2 * rng.random((rows, DONE), np.float32) - 1
    ends = np.arange(rows) % LENGTH == LENGTH - 1
    now, then = (np.ascontiguousarray(x).reshape(rows, SEEN) for x in (seen[:, :-1], seen[:, 1:]))
    return Logs(Path("random"), SPACES, now, done, rng.random(rows, np.float32), np.zeros(rows, bool), ends, then)


def write(folder: Path, size: float) -> int:
    """Write at least so many bytes of logs, a piece at a time; how many steps they are."""
    rng, left = np.random.default_rng(0), -int(-size // (ROW * LENGTH))
    with ColumnFiles(folder) as files:
        while left > 0:
            files.append(piece(rng, min(left, PIECE)))
            left -= PIECE
    return files.rows


def own_memory() -> int:
    """Bytes that this process has allocated, which is what RLIMIT_DATA limits."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmData")) * 1024


def learn(folder: Path, updates: int, limit: int) -> dict[str, Any]:
    """Learn from these logs with no more memory of its own than the limit."""
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    torch.set_num_threads(1)
    task, begun = LoggedTask(data=str(folder)), time.perf_counter()
    loop = OffPolicyLoop(get_method("td3-bc"), task, [Member(0)], -(-updates // BLOCK))  # type: ignore[arg-type]
    opened = time.perf_counter()
    for _ in range(loop.steps):
        loop.step()
    taken = time.perf_counter() - opened
    found = {
        "opened_seconds": round(opened - begun, 1), "updates": loop.updater.updates,
        "updates_per_second": round(loop.updater.updates / taken, 1), "own_gigabytes": round(own_memory() / GB, 2),
    }  # fmt: skip
    try:
        np.array(task.logs().observations)
    except MemoryError:
        return {**found, "a_copy_of_observations": "does not fit"}
    return {**found, "a_copy_of_observations": "fits"}


def measured(folder: Path, size: float, limit: float, updates: int) -> dict[str, Any]:
    """What this comes to, in gigabytes of logs and of memory. Raises CalledProcessError where it does not fit."""
    begun = time.perf_counter()
    rows = write(folder, size * GB)
    written = time.perf_counter() - begun
    command = [sys.executable, __file__, "--learn", str(folder), "--updates", str(updates), "--limit", str(limit)]
    learned = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    sizes = {"gigabytes": round(rows * ROW / GB, 3), "rows": rows, "limit_gigabytes": limit}
    return {"cpu": processor(), "torch": torch.__version__, **sizes, "written_seconds": round(written, 1), **learned}


def main(given: Sequence[str] | None = None) -> None:
    """Print the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=6.0, help="of logs")
    parser.add_argument("--limit", type=float, default=2.0, help="gigabytes of memory of its own")
    parser.add_argument("--updates", type=int, default=2_000)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--learn", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args(given)
    if chosen.learn:
        print(json.dumps(learn(chosen.learn, chosen.updates, int(chosen.limit * GB))))
        return
    with tempfile.TemporaryDirectory(dir=mapped.place()) as scratch:
        result = measured(Path(scratch) / "logs", chosen.gigabytes, chosen.limit, chosen.updates)
    text = json.dumps(result, indent=1)
    if chosen.output:
        chosen.output.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
