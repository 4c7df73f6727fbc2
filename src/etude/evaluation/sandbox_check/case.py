"""One case of the suite: a program, and what must come of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from etude.runtime.sandbox.limits import Ended, Limits, Outcome, Program

QUICK = Limits(seconds=3.0)
SHORT = Limits(seconds=0.5)


@dataclass(frozen=True)
class Case:
    """A program and what must come of it.

    Args:
        name: what holds, as a sentence.
        code: what is run; functions of it are called as `calls` say.
        holds: whether it does, of what came of the program.
    """

    name: str
    code: str
    holds: Callable[[Outcome], bool]
    calls: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    stdin: str = ""
    limits: Limits = QUICK

    @property
    def program(self) -> Program:
        return Program(self.code, self.calls, self.stdin, self.limits)


def answered(*values: object) -> Callable[[Outcome], bool]:
    """That its functions returned these, and all went well."""
    return lambda o: o.ended is Ended.DONE and dict(o.answers) == dict(enumerate(values))


def without_answer(*ends: Ended) -> Callable[[Outcome], bool]:
    """That no function returned anything, and the program ended in one of these ways, or in any."""
    return lambda o: not o.answers and (not ends or o.ended in ends)


def ended(*ends: Ended) -> Callable[[Outcome], bool]:
    """That it ended in one of these ways."""
    return lambda o: o.ended in ends


def printed(text: str) -> Callable[[Outcome], bool]:
    """That it printed just this, and all went well."""
    return lambda o: o.ended is Ended.DONE and o.stdout == text


def refused(code: str) -> str:
    """A function `f` that says what an attempt raised: '' if it went through, else the name of the error."""
    lines = "\n".join(f"        {line}" for line in code.strip().splitlines())
    return f"import os, sys, socket, ctypes\ndef f():\n    try:\n{lines}\n    except BaseException as e:\n"\
        "        return type(e).__name__\n    return ''\n"  # fmt: skip


def failed(outcome: Outcome) -> bool:
    """That an attempt of `refused` did not go through."""
    return outcome.ended is Ended.DONE and outcome.answers.get(0, "") != ""


def attempt(name: str, code: str) -> Case:
    """A case of something that must raise."""
    return Case(name, refused(code), failed, (("f", ()),))


def kernel_refuses(name: str, number: tuple[int, int], *arguments: object) -> Case:
    """A case of a call of the kernel's that must fail with EPERM; numbers on x86-64 and on AArch64."""
    given = ", ".join(map(str, arguments))
    code = (
        "import ctypes, platform\ndef f():\n    kernel = ctypes.CDLL(None, use_errno=True)\n"
        f"    number = {number}[platform.machine() == 'aarch64']\n"
        f"    return [kernel.syscall(number, {given}), ctypes.get_errno()]\n"
    )
    return Case(f"The kernel refuses {name}", code, answered([-1, 1]), (("f", ()),))
