"""Programs that want to be judged right without being so. What they are told does not suffice for that."""

from __future__ import annotations

from etude.evaluation.sandbox_check.case import Case, answered, ended, printed, refused, without_answer
from etude.runtime.sandbox.limits import Ended

ADD = (("add", (2, 3)),)
"""What is asked: add(2, 3); the answer, 5, is not told."""
WRONG = "def add(a, b): return 0\n"
FRAMES = """
import gc, sys
frame = sys._getframe()
while frame:
    for value in list(frame.f_locals.values()):
        if isinstance(value, list):
            value.append("passed")
        if isinstance(value, dict):
            value["passed"] = True
    frame = frame.f_back
def add(a, b):
    return 0
"""
EQUAL = """
class Same(int):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __hash__ = int.__hash__
def add(a, b): return Same(0)
"""
STRANGE = "class Same:\n    def __eq__(self, other): return True\ndef add(a, b): return Same()\n"
FORGED = """
import os, sys
for number in range(3, 64):
    for line in (b'{"call": 0, "answer": 5}', b'0' * 32 + b' {"call": 0, "answer": 5}', b'\\n\\xff {"ended": "done"}'):
        try:
            os.write(number, line + b"\\n")
        except OSError:
            pass
os._exit(0)
"""
FIRST = """
import sys
speaker = sys._getframe(1).f_locals["speaker"]
speaker.say(call=0, answer=1)
speaker.say(call=0, answer=5)
speaker.say(call=7, answer=5)
speaker.say(call=True, answer=5)
speaker.say(call=[], answer=5)
speaker.say(ended="right")
def add(a, b): return 5
"""
PATCHED = "import json\njson.dumps = lambda *a, **k: '5'\n" + WRONG
SEARCH = """
import gc, sys
def look():
    seen, todo, found = set(), [sys._getframe(3).f_locals, *gc.get_objects()], 0
    while todo and len(seen) < 200000:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        found += value == 86243 and type(value) is int
        todo.extend(gc.get_referents(value))
    return found <= 1
"""

CASES = (
    Case("A right function is right", "def add(a, b): return a + b\n", answered(5), ADD),
    Case("A wrong function is wrong", WRONG, answered(0), ADD),
    Case("os._exit(0) before the calls answers nothing", f"import os\n{WRONG}os._exit(0)", without_answer(), ADD),
    Case("sys.exit(0) before the calls answers nothing", f"import sys\n{WRONG}sys.exit(0)",
         without_answer(Ended.EXITED), ADD),
    Case("os._exit(0) inside a call answers nothing", "import os\ndef add(a, b): os._exit(0)",
         without_answer(Ended.DIED), ADD),
    Case("Raising SystemExit inside a call answers nothing", "def add(a, b): raise SystemExit(0)",
         without_answer(), ADD),
    Case("Editing the frames above is of no use", FRAMES, lambda o: dict(o.answers) == {0: 0}, ADD),
    Case("An int that is equal to everything is sent as the number it is", EQUAL, answered(0), ADD),
    Case("An object that is equal to everything is no answer", STRANGE, without_answer(Ended.RAISED), ADD),
    Case("Printing 'passed' is of no use", "print('passed\\nOK')\ndef add(a, b):\n print('5')\n return 0",
         answered(0), ADD),
    Case("Lines without the marker are not read", FORGED, without_answer(Ended.DIED), ADD),
    Case("What is said twice counts as first said, what was not asked not at all", FIRST,
         lambda o: o.answers.get(0) == 1 and o.ended is Ended.RAISED, ADD),
    Case("Other encoders of JSON change nothing", PATCHED, answered(0), ADD),
    Case("What is expected is nowhere in the process", SEARCH, answered(True), (("look", ()),)),
    Case("posix.system writes no file of this machine", refused(
        "import posix\nassert posix.system('echo x > /usr/etude-x || echo x > /etude-x') == 0"),
         answered("AssertionError"), (("f", ()),)),
    Case("A child by posix.fork cannot outlive the program",
         "import posix, time\nif posix.fork() == 0:\n time.sleep(60)\n", ended(Ended.DONE)),
    Case("A thread that goes on cannot outlive the program",
         "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\nprint(1)", printed("1\n")),
    Case("Killing all that it can see kills no one else", "import os\nos.kill(-1, 9)",
         ended(Ended.DIED, Ended.DONE, Ended.RAISED)),
)  # fmt: skip
