"""What must hold of this machine while programs run: looked at from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from etude.runtime.sandbox.limits import Ended, Limits, Program
from etude.runtime.sandbox.pool import Pool

SPAWNS = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
time.sleep({seconds})
"""
TRAINER = """
import sys
from etude.runtime.sandbox.limits import Limits, Program
from etude.runtime.sandbox.pool import Pool
pool = Pool(2, Limits(seconds=600))
print("begun", flush=True)
pool.run([Program("import time\\nimport os\\nos.fork()\\ntime.sleep(600)", limits=Limits(seconds=600))])
"""
FORKS = """
import os, time
def f():
    children = []
    try:
        while True:
            child = os.fork()
            if not child:
                time.sleep(60)
            children.append(child)
    except OSError:
        time.sleep(0.5)
    return [os.getuid(), len(children)]
"""
LEFT = 5.0
"""Seconds that the kernel may take until processes that were killed are gone."""


TRAINED = 7
"""Processes of `TRAINER`: a program and its child, one that waits, and two of bubblewrap's around each of these."""


@dataclass(frozen=True)
class Look:
    """A look at this machine: what holds, as a sentence, and whether it does."""

    name: str
    holds: Callable[[Pool], bool]


def below(process: int) -> set[int]:
    """The numbers of all processes that a process started, and those that these did."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found, new = set[int](), {process}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found
        found |= new
    return found


def gone(processes: set[int]) -> bool:
    """Whether they all end soon."""
    until = time.monotonic() + LEFT
    while left := {p for p in processes if Path(f"/proc/{p}").exists()}:
        if time.monotonic() > until:
            return False
        time.sleep(0.02 if left else 0)
    return True


def _leaves_nothing(seconds: float, how: Ended) -> Callable[[Pool], bool]:
    def look(pool: Pool) -> bool:
        pool.close()
        before = below(os.getpid())
        (outcome,) = pool.run([Program(SPAWNS.format(seconds=seconds), limits=Limits(seconds=1.0))])
        pool.close()
        return outcome.ended is how and gone(below(os.getpid()) - before)

    return look


def _stays_small(pool: Pool) -> bool:
    """That endless output does not grow in this process."""
    before = _resident()
    pool.run([Program("while True: print('x' * 65536)", limits=Limits(seconds=1.0))])
    return _resident() - before < 50 * 2**20


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _dies_with_us(pool: Pool) -> bool:
    """That kill -9 of the one who runs programs ends them."""
    command = [sys.executable, "-c", TRAINER]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ) as trainer:
        assert trainer.stdout is not None
        trainer.stdout.readline()
        until = time.monotonic() + 20
        while len(started := below(trainer.pid)) < TRAINED and time.monotonic() < until:
            time.sleep(0.02)
        trainer.send_signal(signal.SIGKILL)
        trainer.wait()
    return len(started) >= TRAINED and gone(started)


def _keeps_secrets(pool: Pool) -> bool:
    """That a variable of this process, whose name is a secret's, is not seen inside."""
    os.environ["ETUDE_CHECK_TOKEN"] = "a secret"
    try:
        pool.close()
        (outcome,) = pool.run([Program("import os\nprint('secret' in str(os.environ))")])
    finally:
        del os.environ["ETUDE_CHECK_TOKEN"]
    return outcome.stdout == "False\n"


def _one_user_each(pool: Pool) -> bool:
    """That two programs at once do not take each other's processes, nor, where this is root, have one user."""
    programs = [Program(f"{FORKS}# {n}", (("f", ()),)) for n in range(2)]
    answers = [o.answers[0] for o in pool.run(programs) if o.answers]
    users, counts = {a[0] for a in answers}, {a[1] for a in answers}
    return len(answers) == 2 and len(counts) == 1 and (os.geteuid() != 0 or len(users) == min(2, pool.slots))


def _interrupted(pool: Pool) -> bool:
    """That Ctrl-C while programs run leaves nothing."""
    pool.close()
    before = below(os.getpid())
    was = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        pool.run([Program("while True: pass", limits=Limits(seconds=20.0))])
    except KeyboardInterrupt:
        pool.close()
        return gone(below(os.getpid()) - before)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, was)
    return False


LOOKS = (
    Look("The limit of time ends children that left their group, and nothing is left in the process table",
         _leaves_nothing(600, Ended.TIMEOUT)),
    Look("The end of a program ends its daemons, and nothing is left in the process table",
         _leaves_nothing(0, Ended.DONE)),
    Look("Output without end does not fill the memory of who reads it", _stays_small),
    Look("Programs end with the one who runs them, also by kill -9", _dies_with_us),
    Look("Ctrl-C leaves nothing", _interrupted),
    Look("Secrets in the environment stay outside", _keeps_secrets),
    Look("Programs that run at once are limited apart", _one_user_each),
)  # fmt: skip
