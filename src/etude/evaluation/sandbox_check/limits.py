"""Programs that take more than they may: time, memory, processes, room on the disk."""

from __future__ import annotations

from etude.evaluation.sandbox_check.case import SHORT, Case, answered, attempt, ended
from etude.runtime.sandbox.limits import MIB, Ended, Limits

FILL = """
def fill(path, size):
    try:
        with open(path, "wb") as file:
            for _ in range(size):
                file.write(bytes(2**20))
                file.flush()
    except OSError as error:
        return error.errno
    return 0
def many(folder):
    total = 0
    for n in range(64):
        try:
            with open(f"{folder}/{n}", "wb") as file:
                file.write(bytes(2**20))
                file.flush()
            total += 1
        except OSError:
            break
    return total
"""
CHILDREN = """
import os, time
def children():
    count = 0
    try:
        for _ in range(200):
            if os.fork() == 0:
                time.sleep(60)
            count += 1
    except OSError:
        pass
    return count < 16
"""
STUBBORN = """
import os, signal, time
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            break
        os._exit(0)
while True:
    time.sleep(1)
"""
EACH = """
import os
def each():
    reads, writes = os.pipe()
    for _ in range(3):
        if os.fork() == 0:
            try:
                bytearray(300 * 2**20)
                os.write(writes, b"x")
            except MemoryError:
                pass
            os._exit(0)
    for _ in range(3):
        os.wait()
    os.close(writes)
    return len(os.read(reads, 10))
"""
SMALL = Limits(seconds=3.0, disk=2 * MIB)

CASES = (
    Case("An endless loop is stopped", "while True: pass", ended(Ended.TIMEOUT), limits=SHORT),
    Case("A program that sleeps is stopped", "import time\ntime.sleep(60)", ended(Ended.TIMEOUT), limits=SHORT),
    Case("A program that stops itself is ended", "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
         ended(Ended.TIMEOUT, Ended.DONE), limits=SHORT),
    Case("One long operation is stopped", "9**9**9", ended(Ended.TIMEOUT, Ended.MEMORY), limits=SHORT),
    Case("A regular expression that goes back without end is stopped",
         "import re\nre.match(r'(a+)+$', 'a' * 64 + 'b')", ended(Ended.TIMEOUT), limits=SHORT),
    Case("Children that ignore all signals are stopped with it", STUBBORN, ended(Ended.TIMEOUT), limits=SHORT),
    Case("What was answered before the time was up is kept",
         "def f(x):\n while x: pass\n return 1", lambda o: o.ended is Ended.TIMEOUT and dict(o.answers) == {0: 1},
         (("f", (0,)), ("f", (1,))), limits=SHORT),
    Case("A fork bomb meets its limit", "import os\nwhile True: os.fork()", ended(Ended.PROCESSES)),
    Case("A bomb of shells meets its limit",
         "import subprocess\nsubprocess.run(['/bin/sh', '-c', 'f() { f | f & }; f; wait'])",
         ended(Ended.DONE, Ended.PROCESSES, Ended.TIMEOUT), limits=SHORT),
    Case("Processes are counted", CHILDREN, answered(True), (("children", ()),)),
    Case("Threads are counted as well", "import threading, time\nwhile True: "
         "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()", ended(Ended.PROCESSES)),
    Case("Memory has a limit", "x = bytearray(2**31)", ended(Ended.MEMORY)),
    Case("Memory that grows meets its limit", "x = []\nwhile True: x.append(bytearray(2**20))", ended(Ended.MEMORY)),
    Case("Each child has the limit of memory too", EACH, answered(0), (("each", ()),)),
    Case("A file has a largest size", FILL, answered(27), (("fill", ("/tmp/x", 64)),), limits=SMALL),
    Case("/tmp has a size", FILL, lambda o: 0 < o.answers.get(0, 99) <= 16, (("many", ("/tmp",)),)),
    Case("/dev/shm has a size", FILL, lambda o: 0 < o.answers.get(0, 99) <= 4, (("many", ("/dev/shm",)),)),
    attempt("Nothing is written beside them", "open('/x', 'w')"),
    attempt("Nothing is written to /dev", "open('/dev/x', 'w')"),
    attempt("Files that are open are counted", "kept = [open('/dev/null') for _ in range(200)]"),
    attempt("Limits cannot be raised",
            "import resource as r\nr.setrlimit(r.RLIMIT_NPROC, (64, 64))"),
    Case("Recursion without end is an error", "def f(): return f()\nf()", ended(Ended.RAISED, Ended.DIED)),
    Case("A crash of the interpreter ends the program alone", "import ctypes\nctypes.string_at(0)", ended(Ended.DIED)),
    Case("Brackets without end are an error", "eval('(' * 100000)", ended(Ended.RAISED, Ended.MEMORY, Ended.DIED)),
)  # fmt: skip
