"""Programs with one fault: each differs in one token, is another program, and its repair passes the tests."""

from __future__ import annotations

import ast
import io
import tokenize
from typing import Any

import numpy as np
import pytest

from etude.core.episodes import Problem
from etude.core.errors import ConfigError, DataError
from etude.core.fit import objections
from etude.core.registry import get_method
from etude.curricula.generated import Generated
from etude.curricula.mutation import KINDS, MutatedPrograms, mutants
from etude.curricula.rules import FailsTests
from etude.tasks import resolve_task
from etude.tasks.language.program_tests import ProgramTests, program_tests

CODE = '''\
def f(xs, low):  # above, or "<" below
    """The sum of what is > low."""
    é, total = "é<1", 0
    for x in xs:
        if (x  <  low and x not in (3,)) or x is None:
            total += x * 2
    print(f"{total + 1}", total % 2)
    return total
'''


def words(code: str) -> list[str]:
    return [t.string for t in tokenize.generate_tokens(io.StringIO(code).readline)]


def test_a_program_by_hand_has_these_mutants_and_no_other() -> None:
    code = "def f(a, b):\n    return a + b < 2"
    made = {(m.kind, m.line, m.code.splitlines()[1].strip()) for m in mutants(code)}
    assert made == {
        ("operator", 2, "return a - b < 2"), ("operator", 2, "return a + b <= 2"),
        ("constant", 2, "return a + b < 1"), ("constant", 2, "return a + b < 3"),
        ("variable", 2, "return b + b < 2"), ("variable", 2, "return a + a < 2"),
    }  # fmt: skip


@pytest.mark.slow
def test_each_mutant_is_one_token_on_one_line_away() -> None:
    found = mutants(CODE)
    assert {m.kind for m in found} == set(KINDS) and len({m.code for m in found}) == len(found)
    for mutant in found:
        lines = [
            n for n, (a, b) in enumerate(zip(CODE.splitlines(), mutant.code.splitlines(), strict=True), 1) if a != b
        ]
        assert lines == [mutant.line]
        assert ast.dump(ast.parse(mutant.code)) != ast.dump(ast.parse(CODE))
        before, after = words(CODE), words(mutant.code)
        more = len(after) - len(before)  # `in` to `not in`, 0 to -1
        apart = [i for i, (a, b) in enumerate(zip(before, after)) if a != b]
        assert more in (0, 1) and before[apart[0] + 1 :] == after[apart[0] + 1 + more :]


def test_what_is_no_code_of_its_own_stays_as_it_is() -> None:
    """Comments, text, f-strings, and an operator of two words."""
    assert all(m.code.count('"<" below') == m.code.count('"é<1"') == m.code.count('f"{total + 1}"') == 1
               for m in mutants(CODE))  # fmt: skip
    assert all("x not in (" in m.code or m.kind == "variable" for m in mutants(CODE))
    assert [m.code.splitlines()[2] for m in mutants(CODE) if m.line == 3] == [
        f'    é, total = "é<1", {n}' for n in (-1, 1)
    ]
    assert mutants("def f(:") == mutants("") == ()


def test_undoing_a_fault_is_a_fault_again() -> None:
    code = "def f(a, b):\n return a - b"
    for mutant in mutants(code):
        assert code in [m.code for m in mutants(mutant.code)] or mutant.kind == "variable"


@pytest.mark.slow
def test_the_worked_program_passes_what_the_faulty_one_fails() -> None:
    """The gold patch earns 1, the empty patch 0, on every problem that the rule lets pass."""
    source, rule, kept = MutatedPrograms(), FailsTests(), 0
    for n in range(12):
        given = program_tests.problems("train")[n]
        problem = source.make(given, np.random.default_rng(n))
        if problem is None:  # no operator, no number, no second name
            continue
        assert problem.prompt == f"{problem.info['program']}\n{given.prompt}"
        if rule.refuses(problem) is None:
            kept += 1
            assert program_tests.score(problem, problem.info["program"]) == 0.0
            assert program_tests.score(problem, program_tests.demonstration(problem) or "") == 1.0
        else:
            assert rule.refuses(problem) == "passes_tests"
            assert program_tests.score(problem, problem.info["program"]) == 1.0
    assert kept >= 6


def test_each_kind_of_fault_is_as_likely_as_another() -> None:
    worked = Problem("1", "?", info={"demonstration": "def f(a, b, c, d):\n return a + b + c + d + 1"})
    random = np.random.default_rng(0)
    levels = [MutatedPrograms().make(worked, random).level for _ in range(2000)]  # type: ignore[union-attr]
    assert all(abs(levels.count(kind) / 2000 - 1 / 3) < 0.05 for kind in KINDS)


@pytest.mark.slow
def test_it_is_refused_where_nothing_can_be_made() -> None:
    method: Any = get_method("grpo").replace(curriculum=Generated(source=MutatedPrograms()))
    assert "have no demonstration and no tests" not in " ".join(map(str, objections(method, ProgramTests())))
    assert "have no tests" in " ".join(map(str, objections(method, resolve_task("compose"))))
    with pytest.raises(ConfigError, match="MutatedPrograms needs a kind of fault"):
        MutatedPrograms(prompt="{problem}")
    assert MutatedPrograms().make(Problem("1", "?", info={"demonstration": "x"}), np.random.default_rng(0)) is None
    with pytest.raises(DataError, match="FailsTests tries the program of a problem, and '1' has none"):
        FailsTests().refuses(Problem("1", "?"))
