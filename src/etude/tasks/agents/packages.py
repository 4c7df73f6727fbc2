"""Small packages of Python with one fault in them, made from templates of functions, and the tests that see it.

A package has one to three functions in one to three files. Local names are drawn, so that packages differ; the fault
is one of `curricula.mutation.mutants` in one of its functions: another operator, a number one more or one less, another
name. Which tests fail because of it is found by running them, in the sandbox, with the fault and without.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

from numpy.random import Generator

from etude.core.streams import Stream
from etude.curricula.mutation import Mutant, mutants
from etude.policies.code_words import FUNCTIONS, HOMES, ROLES
from etude.rewards.testing import UnitTest, judged
from etude.runtime.sandbox.limits import Limits

SECONDS = 2.0
"""That the tests of a package may take."""
CASES = 24
"""Calls of each function of which packages have some."""
YEAR = 2025
"""Of packages: the first template came to be in January, and each later one a month after."""


class Template(NamedTuple):
    """A function.

    Args:
        home: the file that it is in, without `.py`.
        source: with the names of `ROLES`.
        truth: the same, written independently: what tests expect.
        drawn: arguments of a call.
        needs: another function that it calls.
    """

    name: str
    home: str
    source: str
    truth: Callable[..., Any]
    drawn: Callable[[Generator], tuple[Any, ...]]
    needs: str = ""

    @property
    def number(self) -> int:
        """When it came to be, from 0."""
        return FUNCTIONS.index(self.name)


class Fault(NamedTuple):
    """A fault in a template: which one of its `mutants`."""

    template: str
    number: int


def _numbers(random: Generator, fewest: int = 2) -> list[int]:
    return [int(n) for n in random.integers(1, 10, size=int(random.integers(fewest, 5)))]


def _letters(random: Generator, fewest: int = 3, most: int = 5) -> str:
    return "".join(random.choice(list("abc"), size=int(random.integers(fewest, most + 1))))


def _one(random: Generator, low: int, high: int) -> int:
    return int(random.integers(low, high + 1))


def _mirrored(random: Generator) -> tuple[str]:
    text = _letters(random, 2, 3)
    return (text + text[::-1][_one(random, 0, 1) :] if random.random() < 0.6 else text + _letters(random, 1, 2),)


_TEMPLATES = (
    Template("clip", "sums", """\
def clip(x, low, high):
    if x < low:
        return low
    if x > high:
        return high
    return x
""", lambda x, low, high: min(max(x, low), high),
        lambda r: (_one(r, 0, 9), _one(r, 1, 4), _one(r, 5, 8))),
    Template("add_all", "lists", """\
def add_all(xs):
    total = 0
    for x in xs:
        total = total + x
    return total
""", sum, lambda r: (_numbers(r),)),
    Template("count_of", "texts", """\
def count_of(text, letter):
    total = 0
    for x in text:
        if x == letter:
            total = total + 1
    return total
""", lambda text, letter: text.count(letter), lambda r: (_letters(r), _letters(r, 1, 1))),
    Template("average", "sums", """\
from lists import add_all

def average(xs):
    return add_all(xs) // len(xs)
""", lambda xs: sum(xs) // len(xs), lambda r: (_numbers(r),), "add_all"),
    Template("initials", "texts", """\
def initials(words):
    total = ""
    for word in words:
        total = total + word[0]
    return total
""", lambda words: "".join(w[:1] for w in words), lambda r: ([_letters(r, 2, 3) for _ in range(_one(r, 2, 3))],)),
    Template("factorial", "sums", """\
def factorial(n):
    total = 1
    for i in range(2, n + 1):
        total = total * i
    return total
""", lambda n: prod(range(1, n + 1)), lambda r: (_one(r, 0, 6),)),
    Template("largest", "lists", """\
def largest(xs):
    best = xs[0]
    for x in xs[1:]:
        if x > best:
            best = x
    return best
""", max, lambda r: (_numbers(r),)),
    Template("is_mirror", "texts", """\
def is_mirror(text):
    for i in range(len(text) // 2):
        if text[i] != text[len(text) - 1 - i]:
            return False
    return True
""", lambda text: text == text[::-1], _mirrored),
    Template("power", "sums", """\
def power(base, n):
    total = 1
    for i in range(n):
        total = total * base
    return total
""", lambda base, n: base**n, lambda r: (_one(r, 2, 4), _one(r, 0, 4))),
    Template("steps", "lists", """\
def steps(xs):
    total = []
    for i in range(1, len(xs)):
        total.append(xs[i] - xs[i - 1])
    return total
""", lambda xs: [b - a for a, b in pairwise(xs)], lambda r: (_numbers(r),)),
    Template("thin", "texts", """\
def thin(text, n):
    total = ""
    for i in range(len(text)):
        if i % n == 0:
            total = total + text[i]
    return total
""", lambda text, n: text[::n], lambda r: (_letters(r), _one(r, 2, 3))),
    Template("digit_sum", "sums", """\
def digit_sum(n):
    total = 0
    for x in str(n):
        total = total + int(x)
    return total
""", lambda n: sum(map(int, str(n))), lambda r: (_one(r, 10, 999),)),
)  # fmt: skip
TEMPLATES = {template.name: template for template in _TEMPLATES}
"""By name, in the order in which they came to be."""


# One function: its calls, its faults, and what they do


@cache
def cases(name: str) -> tuple[UnitTest, ...]:
    """Calls of a function, with what they should return, no two alike; fewer than `CASES` where there are no more."""
    template, random = TEMPLATES[name], Stream(0).split("mini-swe", "cases", name).numpy
    drawn = {repr(arguments): arguments for arguments in (template.drawn(random) for _ in range(8 * CASES))}
    return tuple(UnitTest(name, a, template.truth(*a)) for a in list(drawn.values())[:CASES])


def faults(name: str) -> tuple[Mutant, ...]:
    """Every fault that can be put into a function."""
    return mutants(TEMPLATES[name].source)


def parts(name: str) -> list[str]:
    """A function and what it needs, that first."""
    needed = TEMPLATES[name].needs
    return [*([needed] if needed else []), name]


@lru_cache(maxsize=4096)
def passing(name: str, fault: Fault | None) -> tuple[bool, ...]:
    """Which of its `cases` a function passes where it, or what it needs, has a fault: they are run.

    Local names change nothing of this. Raises ConfigError where there is no sandbox.
    """
    (verdict,) = judged([(program(written(parts(name), {}, fault)), cases(name))], Limits(seconds=SECONDS))
    return verdict.passed


# Packages


def named(source: str, names: Mapping[str, str]) -> str:
    """A source with other local names.

    >>> named("total = total + x", {"x": "item"})
    'total = total + item'
    """
    return re.sub(r"\b[a-z]+\b", lambda found: names.get(found[0], found[0]), source)


def written(functions: Sequence[str], names: Mapping[str, Mapping[str, str]], fault: Fault | None) -> dict[str, str]:
    """The files of a package, in the order in which they are read.

    Args:
        functions: by name; what they need has to be among them.
        names: the local names of each function, by role.
        fault: what is wrong; None for nothing.
    """
    files = dict[str, str]()
    for home in HOMES:
        pieces = list[str]()
        for template in TEMPLATES.values():
            if template.home == home and template.name in functions:
                faulty = fault is not None and fault.template == template.name
                source = faults(template.name)[fault.number].code if faulty and fault else template.source
                pieces.append(named(source, names.get(template.name, {})))
        if pieces:
            files[f"{home}.py"] = "\n".join(sorted(pieces, key=lambda piece: not piece.startswith("from")))
    return files


def program(files: Mapping[str, str]) -> str:
    """One program that has the functions of all files, each a module; what is no Python leaves out its own."""
    modules = [(name.removesuffix(".py"), text) for name, text in files.items()]
    return _LOADER.format(modules=modules)


_LOADER = """\
def load(modules):
    import sys, types
    for name, text in modules:
        module = types.ModuleType(name)
        try:
            exec(compile(text, name + ".py", "exec"), module.__dict__)
        except Exception:
            continue
        sys.modules[name] = module
        globals().update({{k: v for k, v in vars(module).items() if not k.startswith("__")}})

load({modules!r})
"""


def asserted(test: UnitTest) -> str:
    """A test as a line of Python.

    >>> asserted(UnitTest("clip", (9, 2, 5), 5))
    'assert clip(9, 2, 5) == 5'
    """
    return f"assert {called(test)} == {test.value!r}"


def called(test: UnitTest) -> str:
    """The call of a test."""
    return f"{test.call}({', '.join(map(repr, test.arguments))})"


def outcomes(files: Mapping[str, str], tests: Sequence[UnitTest]) -> tuple[bool, ...]:
    """Which tests a package passes, run in the sandbox. Raises ConfigError where there is none."""
    return judged([(program(files), tuple(tests))], Limits(seconds=SECONDS))[0].passed


def drawn_names(random: Generator) -> dict[str, str]:
    """A name for each role."""
    return {role: str(random.choice(list(names))) for role, names in ROLES.items()}


def package(random: Generator, templates: Sequence[str], tests: int) -> dict[str, Any] | None:
    """A package with a fault, as plain values; None where no test sees the fault that was drawn.

    `files` and, without the fault, `fixed`; `tests`, those of the faulty function first, of which `fail_to_pass` fail
    because of the fault and `pass_to_pass` pass with it and without; `issue`; where the fault is (`function`, `kind`,
    `file`, `line` from 1); `created_at`, in the month in which the faulty function came to be.

    Args:
        templates: functions that may be faulty; beside them stand ones that are older.
        tests: of the faulty function, of which the fault fails at least one; others have half as many, but one.
    """
    faulty = templates[int(random.integers(len(templates)))]
    broken = parts(faulty)[int(random.integers(len(parts(faulty))))]
    fault = _drawn(broken, random)
    seen = [k for k, passed in enumerate(passing(faulty, fault)) if not passed]
    older = [name for name in TEMPLATES if TEMPLATES[name].number < TEMPLATES[faulty].number]
    beside = [older[k] for k in random.permutation(len(older))[: int(random.integers(3))]]
    functions = list(dict.fromkeys(part for name in (faulty, *beside) for part in parts(name)))
    names = {name: drawn_names(random) for name in functions}
    if not seen:
        return None
    listed = [cases(faulty)[k] for k in _some(random, len(cases(faulty)), tests, seen)]
    for name in functions[1:]:
        listed += [cases(name)[k] for k in _some(random, len(cases(name)), max(1, tests // 2))]
    passed = [passing(t.call, _felt(t.call, fault))[cases(t.call).index(t)] for t in listed]
    return _told(listed, passed, written(functions, names, fault), written(functions, names, None), faulty, fault) | {
        "created_at": f"{YEAR}-{TEMPLATES[faulty].number + 1:02d}-{int(random.integers(1, 29)):02d}",
    }


def _drawn(name: str, random: Generator) -> Fault:
    """A fault of a function; each kind that it can have is as likely as another."""
    kinds = sorted({mutant.kind for mutant in faults(name)})
    kind = kinds[int(random.integers(len(kinds)))]
    numbers = [k for k, mutant in enumerate(faults(name)) if mutant.kind == kind]
    return Fault(name, numbers[int(random.integers(len(numbers)))])


def _felt(name: str, fault: Fault) -> Fault | None:
    """The fault, where a function can tell."""
    return fault if fault.template in parts(name) else None


def _some(random: Generator, count: int, most: int, seen: Sequence[int] = ()) -> list[int]:
    """So many numbers below `count`, one of `seen` among them."""
    first = [seen[int(random.integers(len(seen)))]] if seen else []
    rest = [int(k) for k in random.permutation(count) if int(k) not in first]
    return [*first, *rest[: most - len(first)]]


def _told(
    listed: Sequence[UnitTest], passed: Sequence[bool], files: Mapping[str, str], fixed: Mapping[str, str],
    faulty: str, fault: Fault,
) -> dict[str, Any]:  # fmt: skip
    lines = [asserted(test) for test in listed]
    file, line = first_difference(files, fixed)
    first = next(test for test, right in zip(listed, passed) if not right)
    return {
        "files": dict(files), "fixed": dict(fixed), "tests": lines,
        "issue": f"{called(first)} should be {first.value!r}",
        "fail_to_pass": [line for line, right in zip(lines, passed) if not right],
        "pass_to_pass": [line for line, right in zip(lines, passed) if right],
        "function": faulty, "kind": faults(fault.template)[fault.number].kind, "file": file, "line": line,
    }  # fmt: skip


def first_difference(files: Mapping[str, str], fixed: Mapping[str, str]) -> tuple[str, int]:
    """The file and the line, from 1, of the first difference between packages that differ in single lines.

    >>> first_difference({"a.py": "x\\ny\\n"}, {"a.py": "x\\nz\\n"})
    ('a.py', 2)
    """
    both = ((name, files[name].splitlines(), fixed[name].splitlines()) for name in files)
    return next((name, n) for name, is_so, right in both for n, (a, b) in enumerate(zip(is_so, right), 1) if a != b)
