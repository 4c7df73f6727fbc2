"""Programs with one fault that was put into them, to be repaired."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple, get_args

from numpy.random import Generator

from etude.core.episodes import Problem
from etude.core.errors import ConfigError
from etude.core.task import Task
from etude.curricula.rules import asked
from etude.curricula.sources import Source, put
from etude.rewards.testing import code_of

Kind = Literal["operator", "constant", "variable"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SWAPS = {
    "+": ("-",), "-": ("+",), "*": ("+",), "/": ("*",), "//": ("*",), "%": ("//",), "<": ("<=",), "<=": ("<",),
    ">": (">=",), ">=": (">",), "==": ("!=",), "!=": ("==",), "and": ("or",), "or": ("and",), "in": ("not in",),
    "is": ("is not",),
}  # fmt: skip
"""What an operator of one token becomes."""


@dataclass(frozen=True)
class Mutant:
    """A program with a fault: of what kind, in which line from 1, and the program whole."""

    kind: Kind
    line: int
    code: str


class _Token(NamedTuple):
    """A token of a program, its place as `ast` says it: line from 1, and bytes from the beginning of the line."""

    text: str
    begin: tuple[int, int]
    end: tuple[int, int]


@lru_cache(maxsize=1024)
def mutants(code: str, kinds: tuple[Kind, ...] = KINDS) -> tuple[Mutant, ...]:
    """Every program that differs from this one in one token, in the order of the text; none of what is no Python.

    - operator: another operator (+ and -, < and <=, == and !=, `and` and `or`, ...);
    - constant: a whole number, one more or one less;
    - variable: in a function another argument or local name of it, where one is read.

    What stands in f-strings stays as it is.

    >>> [(m.kind, m.code) for m in mutants("def f(x, y): return x < 1")]  # doctest: +NORMALIZE_WHITESPACE
    [('variable', 'def f(x, y): return y < 1'), ('operator', 'def f(x, y): return x <= 1'),
     ('constant', 'def f(x, y): return x < 0'), ('constant', 'def f(x, y): return x < 2')]
    """
    try:
        tree = ast.parse(code)
        lines = io.StringIO(code).readlines()
        tokens = [_token(t, lines) for t in tokenize.generate_tokens(io.StringIO(code).readline) if t.string]
    except (SyntaxError, ValueError, tokenize.TokenError, RecursionError, MemoryError):
        return ()
    found = []
    for kind, token, text in _edits(tree, tokens):
        line, start = token.begin
        raw = lines[line - 1].encode()
        changed = (raw[:start] + text.encode() + raw[token.end[1] :]).decode()
        mutant = "".join([*lines[: line - 1], changed, *lines[line:]])
        if kind in kinds and _other(mutant, tree):
            found.append((token.begin, KINDS.index(kind), Mutant(kind, line, mutant)))
    return tuple(mutant for _, _, mutant in sorted(found, key=lambda item: item[:2]))


def _edits(tree: ast.Module, tokens: list[_Token]) -> Iterator[tuple[Kind, _Token, str]]:
    """Tokens, and what may stand in the place of each."""
    quoted = {id(inner) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for inner in ast.walk(node)}
    names, places = {id(node): others for node, others in _names(tree)}, {t.begin: t for t in tokens}
    for node in ast.walk(tree):
        if id(node) in quoted:
            continue
        for left, right in _operands(node):
            between = [t for t in tokens if left <= t.begin and t.end <= right]
            words = [t for t in between if t.text in SWAPS or t.text == "not"]
            if len(words) == 1:
                yield from (("operator", words[0], text) for text in SWAPS.get(words[0].text, ()))
        token = places.get((getattr(node, "lineno", 0), getattr(node, "col_offset", 0)))
        if token is not None and isinstance(node, ast.Constant) and type(node.value) is int:
            yield from (("constant", token, str(node.value + more)) for more in (-1, 1))
        elif token is not None and isinstance(node, ast.Name) and id(node) in names:
            yield from (("variable", token, other) for other in names[id(node)])


def _operands(node: ast.AST) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Between which places the operators of an expression stand."""
    sides: list[ast.expr] = []
    if isinstance(node, ast.BinOp):
        sides = [node.left, node.right]
    elif isinstance(node, ast.BoolOp):
        sides = node.values
    elif isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
    for left, right in pairwise(sides):
        assert left.end_lineno is not None and left.end_col_offset is not None
        yield (left.end_lineno, left.end_col_offset), (right.lineno, right.col_offset)


def _names(tree: ast.Module) -> Iterator[tuple[ast.Name, list[str]]]:
    """Every local name that is read in a function, and the other local names of it, in alphabetical order."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        inside = list(ast.walk(function))
        known = {node.arg for node in inside if isinstance(node, ast.arg)}
        known |= {node.id for node in inside if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        for node in inside:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in known:
                yield node, sorted(known - {node.id})


def _token(token: tokenize.TokenInfo, lines: list[str]) -> _Token:
    def place(at: tuple[int, int]) -> tuple[int, int]:
        return at[0], len(lines[at[0] - 1][: at[1]].encode()) if at[0] <= len(lines) else 0

    return _Token(token.string, place(token.start), place(token.end))


def _other(code: str, tree: ast.Module) -> bool:
    """Whether this is Python, and another program."""
    try:
        return ast.dump(ast.parse(code)) != ast.dump(tree)
    except SyntaxError:
        return False


class MutatedPrograms(Source):
    """A problem's worked program with one fault in it (`mutants`), to be repaired; the unit tests are the problem's.

    `level` is the kind of the fault, each as likely as another; `info` has the faulty `program` and the `line` of the
    fault, and as `demonstration` still the right program. `rules=fails-tests` leaves out faults that no test sees.

    Args:
        kinds: of faults.
        prompt: what is asked; `{program}` is the faulty program, `{problem}` what the task's problem asks.

    Raises: ConfigError for no kind, or a prompt without the program.

    >>> import numpy as np
    >>> worked = Problem("1", "add>", info={"demonstration": "def f(x, y): return x + y"})
    >>> MutatedPrograms(kinds=("operator",)).make(worked, np.random.default_rng(0)).prompt
    'def f(x, y): return x - y\\nadd>'
    """

    kinds: tuple[Kind, ...] = KINDS
    prompt: str = "{program}\n{problem}"

    def check(self) -> None:
        if not self.kinds or "{program}" not in self.prompt:
            raise ConfigError(
                "MutatedPrograms needs a kind of fault in `kinds` and {program} in `prompt`, got "
                f"{self.kinds} and {self.prompt!r}."
            )

    def lacks(self, task: Task) -> str | None:
        info = task.problems("train")[0].info
        missing = [name for name in ("demonstration", "tests") if not info.get(name)]
        if not missing:
            return None
        return (
            f"MutatedPrograms puts faults into worked programs that have unit tests, and problems of task {task.id!r} "
            f"have no {' and no '.join(missing)}: choose task=program-tests, or data with the columns 'completion' and "
            "'tests'."
        )

    def make(self, problem: Problem, random: Generator) -> Problem | None:
        found = mutants(code_of(str(problem.info.get("demonstration", ""))), self.kinds)
        if not found:
            return None
        there = sorted({mutant.kind for mutant in found})
        kind = there[int(random.integers(len(there)))]
        numbers = [n for n, mutant in enumerate(found) if mutant.kind == kind]
        number = numbers[int(random.integers(len(numbers)))]
        mutant = found[number]
        info = {**problem.info, "program": mutant.code, "line": mutant.line}
        prompt = put(self.prompt, program=mutant.code, problem=asked(problem))
        return Problem(f"{problem.id}/fault{number}", prompt, problem.answer, kind, info)
