"""The suite of the sandbox, in part; `etude check sandbox` runs all of it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest

from etude.cli.check import check
from etude.evaluation.environment_findings import Finding
from etude.evaluation.sandbox_check import around, suite
from etude.evaluation.sandbox_check.case import Case
from etude.runtime.sandbox.consent import UNSAFE
from etude.runtime.sandbox.jail import Walled
from etude.runtime.sandbox.pool import Pool
from sandboxes import needs_sandbox


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    made = Pool(2)
    yield made
    made.close()


@needs_sandbox
@pytest.mark.slow
@pytest.mark.parametrize("about", ["forging", "walls"])
def test_cases_hold(pool: Pool, about: str) -> None:
    assert suite.failing(pool, about, suite.CASES[about]) == []


@needs_sandbox
@pytest.mark.slow
def test_some_of_the_others_hold(pool: Pool) -> None:
    """Those that end by themselves."""
    cases = [c for about in ("limits", "words") for c in suite.CASES[about] if c.limits.seconds > 1][::3]
    assert len(cases) >= 12 and suite.failing(pool, "some", cases) == []


@needs_sandbox
@pytest.mark.slow
def test_the_limit_of_time_leaves_nothing_in_the_process_table(pool: Pool) -> None:
    look = around.LOOKS[0]
    assert "nothing is left in the process table" in look.name and look.holds(pool)


def test_there_are_many_and_each_says_one_thing() -> None:
    names = Counter(c.name for cases in suite.CASES.values() for c in cases) + Counter(k.name for k in around.LOOKS)
    assert len(names) >= 100 and max(names.values()) == 1
    assert sum(c.limits.seconds for cases in suite.CASES.values() for c in cases if c.limits.seconds < 2) < 10


@needs_sandbox
@pytest.mark.slow
def test_a_case_that_does_not_hold_is_a_fault(pool: Pool) -> None:
    wrong = [Case("Two is three", "def f(): return 2", lambda o: o.answers[0] == 3, (("f", ()),)),
             Case("There is an answer", "1 / 0", lambda o: o.answers[0] == 3)]  # fmt: skip
    first, second = suite.failing(pool, "numbers", wrong)
    assert first == Finding("fault", "numbers", "Not so: Two is three. It ended: done, answers {0: 2}; ''")
    assert "ZeroDivisionError" in second.sentence


def test_bombs_are_for_those_who_are_locked_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a wall does not hold, or there is none, no case is run."""

    def never(*given: object) -> None:
        raise AssertionError("a case was run")

    monkeypatch.setattr(suite, "failing", never)
    monkeypatch.setattr(suite, "_looked", never)
    monkeypatch.setattr(suite, "holes", lambda pool: ["started 32 processes where 8 are allowed"])
    monkeypatch.setenv(UNSAFE, "0")
    (found,) = suite.check_sandbox()
    assert found.level == "fault"
    assert found.sentence == "A program that was tried started 32 processes where 8 are allowed."
    monkeypatch.setenv(UNSAFE, "1")
    (found,) = suite.check_sandbox()
    assert "not locked in" in found.sentence


def test_the_word_is_taken(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def none(pool: Pool) -> list[str]:
        raise Walled("bubblewrap is not there")

    monkeypatch.setenv(UNSAFE, "0")
    monkeypatch.setattr(suite, "holes", none)
    with pytest.raises(SystemExit) as ended:
        check("sandbox")
    assert ended.value.code == 1
    assert "No code is run here: bubblewrap is not there." in capsys.readouterr().out


def test_processes_below_one_are_found() -> None:
    child = os.fork()
    if not child:
        os._exit(0)
    assert child in around.below(os.getpid()), "until it is waited for"
    os.waitpid(child, 0)
    assert around.gone({child})
