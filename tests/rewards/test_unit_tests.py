"""Unit tests as a reward: the verdict is made here, of what came back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from etude.core.episodes import Episode, Problem, Segment
from etude.core.errors import DataError
from etude.rewards import testing
from etude.rewards.testing import UnitTest, Verdict, code_of, ends, judged, unit_tests_of
from etude.rewards.unit_tests import UnitTests
from etude.runtime.sandbox.limits import Ended, Outcome, Program
from sandboxes import needs_sandbox

ADD = [{"call": "add", "arguments": [2, 3], "value": 5}, {"call": "add", "arguments": [-1, 1], "value": 0}]
CAT = [{"stdin": "a\nb\n", "stdout": "b\na"}]


class Answering:
    """A pool that has what comes of programs ready, and keeps what it was asked to run."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.outcomes, self.programs = list(outcomes), list[Program]()

    def run(self, programs: Sequence[Program]) -> list[Outcome]:
        self.programs += programs
        return [self.outcomes.pop(0) for _ in programs]


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    testing._known.clear()
    yield
    testing._known.clear()


def pool(monkeypatch: pytest.MonkeyPatch, *outcomes: Outcome) -> Answering:
    made = Answering(*outcomes)
    monkeypatch.setattr(testing, "shared_pool", lambda: made)
    return made


def episode(text: str, tests: object, name: str = "p/1") -> Episode:
    return Episode(Problem(name, "?", info={} if tests is None else {"tests": tests}), [Segment("assistant", text)])


def test_the_verdict_is_made_of_what_came_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that a program says of itself counts but its answers."""
    both = unit_tests_of([*ADD, *CAT])
    asked = pool(
        monkeypatch, Outcome(Ended.DIED, {0: 5}), Outcome(Ended.EXITED, stdout="b  \na\n\n"),
        Outcome(Ended.DONE, {0: True, 1: 0}), Outcome(Ended.RAISED, stdout="b\na"),
    )  # fmt: skip
    first, second = judged([("one", both), ("two", both)])
    assert (first.passed, first.ended, first.right) == ((True, False, True), Ended.DIED, False)
    assert (second.passed, second.ended) == ((False, True, False), Ended.RAISED)
    assert first.share == 2 / 3
    calls = (("add", (2, 3)), ("add", (-1, 1)))
    assert [(p.code, p.calls, p.stdin) for p in asked.programs] == [
        ("one", calls, ""), ("one", (), "a\nb\n"), ("two", calls, ""), ("two", (), "a\nb\n")
    ]  # fmt: skip
    assert not any("5" in repr((p.calls, p.stdin, p.code)) for p in asked.programs), "what is right is not told"


def test_what_is_known_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tests = unit_tests_of(ADD)
    asked = pool(monkeypatch, Outcome(Ended.DONE, {0: 5, 1: 0}), Outcome(Ended.TIMEOUT), Outcome(Ended.TIMEOUT))
    assert [v.right for v in judged([("a", tests), ("a", tests)])] == [True, True] and len(asked.programs) == 1
    assert judged([("a", tests), ("slow", tests)])[0].right and judged([("slow", tests)])[0].ended is Ended.TIMEOUT
    assert [p.code for p in asked.programs] == ["a", "slow", "slow"], "what depends on the clock is tried again"
    assert judged([("", tests), ("x" * 70_000, tests)]) == [Verdict((False, False), Ended.RAISED)] * 2
    assert len(asked.programs) == 3, "what is none, or too long, is not run at all"


def test_a_reward_of_each_completion(monkeypatch: pytest.MonkeyPatch) -> None:
    pool(monkeypatch, Outcome(Ended.DONE, {0: 5, 1: 0}), Outcome(Ended.NETWORK, {0: 5}))
    said = [episode("```python\nright\n```", ADD), episode("half", ADD), episode("anything", None)]
    context: Any = None
    assert UnitTests(weight=2.0, partial=0.5).score(said, context) == [2.0, 0.5, None]
    assert [e.scores["unit-tests/passed"] for e in said[:2]] == [1.0, 0.5]
    shares = ends(e.info for e in said)
    assert shares["programs/network"] == 0.5 and sum(shares.values()) == 0.5
    assert said[2].scores == {}, "no reward of this part"


@pytest.mark.parametrize(
    "told",
    [[], None, "assert f(1) == 2", [{"call": "f"}], [{"call": "f", "arguments": 1, "value": 2}], ["f(1) == 2"],
     ["assert f(x) == 2"], ["assert f(1) != 2"], ["assert f(1) == {1}"], ["assert f(k=1) == 2"],
     [{"stdin": 1, "stdout": ""}],
     [3], ["assert f(" + "(" * 500 + "1"]],
)  # fmt: skip
def test_what_is_no_test_is_told(told: object) -> None:
    with pytest.raises(DataError, match="unit test"):
        unit_tests_of(told, "Problem 'p/1'")


def test_programs_are_found_in_what_was_said() -> None:
    assert code_of("a\n```py\nx\n```\nb\n```\ny\n```") == "y\n" and code_of("```python\nopen") == "```python\nopen"
    assert UnitTest.of("assert f([1, 2], {'a': None}) == (1, 'b')").arguments == ([1, 2], {"a": None})
    two = Episode(Problem("p", "?"), [Segment("assistant", "old"), Segment("tool", "?"), Segment("assistant", "new")])
    from etude.rewards.unit_tests import said

    assert said(two) == "new" and said(Episode(Problem("p", "?"))) == ""


@needs_sandbox
@pytest.mark.slow
def test_forgers_get_nothing() -> None:
    forgers = ["import os\nos._exit(0)", "import sys\nsys.exit(0)", "def add(a, b): raise SystemExit(0)",
               "class E:\n __eq__ = lambda s, o: True\ndef add(a, b): return E()", "print('passed')",
               "while True: pass"]  # fmt: skip
    tests = unit_tests_of(ADD)
    verdicts = judged([*((f, tests) for f in forgers), ("def add(a, b): return a + b", tests)], testing.Limits(1.0))
    assert [v.right for v in verdicts] == [False] * 6 + [True]
    assert [v.share for v in verdicts[:-1]] == [0.0] * 6
    assert verdicts[5].ended is Ended.TIMEOUT


def test_a_file_may_have_tests_for_answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from etude.tasks.language.files import DataFile

    rows = [{"prompt": f"add {n}?", "tests": ["assert add(2, 3) == 5"]} for n in range(4)]
    path = tmp_path / "programs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = DataFile(str(path))
    problem = task.problems("train")[0]
    asked = pool(monkeypatch, Outcome(Ended.DONE, {0: 5}), Outcome(Ended.DONE, {0: 6}))
    monkeypatch.setattr("etude.tasks.language.files.refusal", lambda: None)
    assert task.needs_reward() is None and not task.judged_by_reward
    assert [task.score(problem, text) for text in ("```\none\n```", "two")] == [1.0, 0.0]
    assert [p.code for p in asked.programs] == ["one\n", "two"]
    monkeypatch.setattr("etude.tasks.language.files.refusal", lambda: "Code is not run here.")
    assert task.needs_reward() == "Code is not run here."
    own = DataFile(str(path), scored=False)
    assert own.judged_by_reward and own.score(problem, "one") == 0.0, "a reward function says what is right"


def test_the_file_of_the_page_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from etude.tasks.language.files import DataFile

    docs = Path(__file__).resolve().parents[2] / "docs"
    shown = (docs / "code-safely.md").read_text().split("```json\n")[1].split("```")[0]
    path = docs / "examples" / "programs.jsonl"
    problems = DataFile(str(path), test_fraction=0.0).problems("train")
    assert path.read_text() == shown and [len(unit_tests_of(p.info["tests"])) for p in problems] == [2, 1, 1]
