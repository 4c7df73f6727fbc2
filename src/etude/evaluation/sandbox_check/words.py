"""What programs print and return, however odd: nothing of it breaks who reads it, and honest programs lose nothing."""

from __future__ import annotations

from etude.evaluation.sandbox_check.case import Case, answered, ended, printed, without_answer
from etude.experience.tools.outputs import shown
from etude.runtime.sandbox.limits import Ended, Limits

MARK = "\n... (cut at 65536 bytes)"
F = (("f", ()),)
ENDLESS = Limits(seconds=1.0)
MODULES = """
import bisect, collections, dataclasses, datetime, decimal, enum, fractions, functools, heapq, itertools, json, math
import random, re, statistics, string, typing
@dataclasses.dataclass
class Point:
    x: int
def f(): return [math.gcd(12, 18), Point(3).x, str(fractions.Fraction(1, 3)), sum(map(int, "123"))]
"""

CASES = (
    Case("64 KiB of output are kept whole", "print('x' * 65535)", printed("x" * 65535 + "\n")),
    Case("More than that is cut, with a mark", "print('x' * 10**6)", printed("x" * 65536 + MARK)),
    Case("So are errors", "import sys\nsys.stderr.write('x' * 10**6)", lambda o: o.stderr == "x" * 65536 + MARK),
    Case("Output without end is stopped", "while True: print('x' * 65536)", ended(Ended.TIMEOUT, Ended.OUTPUT),
         limits=ENDLESS),
    Case("NUL is a character", "print('a\\0b')", printed("a\0b\n")),
    Case("Bytes that are no UTF-8 are replaced", "import os\nos.write(1, b'a\\xffb')", printed("a\ufffdb")),
    Case("Half a character is no error", "print('a\\ud800b')", printed("a\\ud800b\n")),
    Case("Codes of terminals are not shown", "print('\\x1b[2J\\x1b]0;title\\x07red\\x1b[31m')",
         lambda o: shown(o.stdout, 100) == "red\n"),
    Case("Markup is text", "print('<script>alert(1)</script>')", printed("<script>alert(1)</script>\n")),
    Case("An answer of megabytes is none", "def f(): return 'x' * 2**22", without_answer(), F),
    Case("An answer without end of brackets is none",
         "import sys\nsys.setrecursionlimit(10**6)\ndef f():\n x = []\n for _ in range(10**5): x = [x]\n return x",
         without_answer(), F),
    Case("A number of many digits is none", "def f(): return 10**5000", without_answer(), F),
    Case("A set is no answer", "def f(): return {1, 2}", without_answer(Ended.RAISED), F),
    Case("Half a character in an answer is one", "def f(): return '\\ud800'", answered("\ud800"), F),
    Case("A tuple is a list", "def f(): return (1, (2.5, None, True))", answered([1, [2.5, None, True]]), F),
    Case("Keys are text", "def f(): return {1: 'a'}", answered({"1": "a"}), F),
    Case("What fails is told with its line", "\n\nx = 1 / 0",
         lambda o: o.ended is Ended.RAISED and "line 3" in o.detail and "ZeroDivisionError" in o.detail),
    Case("A call that fails leaves the others", "def f(x): return 1 / x",
         lambda o: dict(o.answers) == {1: 0.5} and list(o.faults) == [0], (("f", (0,)), ("f", (2,)))),
    Case("What is no Python is told", "def f(:", lambda o: o.ended is Ended.RAISED and "SyntaxError" in o.detail),
    Case("NUL in a program is told", "x = '\0'", ended(Ended.RAISED, Ended.DONE)),
    Case("A function that is not there is told", "", lambda o: "defines no 'f'" in o.faults[0], F),
    Case("A program reads its input", "print(sum(map(int, open(0).read().split())))", printed("6\n"), stdin="1 2\n3"),
    Case("Input of 200 KB arrives whole", "import sys\nprint(len(sys.stdin.read()))", printed("200000\n"),
         stdin="é" * 200_000),
    Case("Without input there is its end", "import sys\nprint(repr(sys.stdin.read()))", printed("''\n")),
    Case("A program of 500 KB runs", "x = 1\n" * 80_000 + "print(x)", printed("1\n"),
         limits=Limits(seconds=20.0)),
    Case("What is asked later finds what was left before", "n = 0\ndef f():\n global n\n n += 1\n return n",
         answered(1, 2), (*F, *F)),
    Case("The standard library is there", MODULES, answered([6, 3, "1/3", 6]), F),
    Case("Other packages are not", "import torch", ended(Ended.RAISED)),
    Case("Sets have the same order in every run", "print({'a', 'b', 'c', 'd'})",
         lambda o: o.stdout.startswith("{'") and o.ended is Ended.DONE),
    Case("A program is the main one", "if __name__ == '__main__': print(1)", printed("1\n")),
)  # fmt: skip
