"""Mini-SWE: packages, faults and tests that are run; an episode by hand; what cannot be done; edits that go wrong."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest

from etude.core.episodes import Problem, Segment
from etude.core.errors import EnvironmentFault, UnknownNameError
from etude.core.streams import Stream
from etude.policies.word_tokenizer import build_word_tokenizer
from etude.rewards.testing import unit_tests_of
from etude.tasks.agents.mini_swe import MiniSWE, mini_swe, templates_of
from etude.tasks.agents.packages import (
    TEMPLATES,
    Fault,
    cases,
    faults,
    outcomes,
    passing,
    program,
    written,
)
from sandboxes import needs_sandbox

pytestmark = [needs_sandbox, pytest.mark.slow]
SUMS = (
    "def clip(x, low, high):\n    if x < low:\n        return low\n    if x > low:\n        return high\n    return x\n"
)
RIGHT = SUMS.replace("x > low", "x > high")
LISTS = "def largest(xs):\n    return max(xs)\n"
TESTS = ["assert clip(3, 2, 5) == 3", "assert clip(9, 2, 5) == 5", "assert largest([1, 4]) == 4"]
PROBLEM = Problem("1", "", info={
    "files": {"lists.py": LISTS, "sums.py": SUMS}, "fixed": {"lists.py": LISTS, "sums.py": RIGHT}, "tests": TESTS,
    "issue": "clip(3, 2, 5) should be 3",
})  # fmt: skip


def play(texts: list[str], task: MiniSWE = mini_swe) -> list[Any]:
    game = task.environment()
    game.reset(PROBLEM, 0)
    return [game.step(Segment("assistant", text)) for text in texts]


def said(segments: list[Segment]) -> list[str]:
    return [s.text for s in segments if s.role == "assistant"]


# Packages


def test_templates_are_right_and_their_tests_come_from_elsewhere() -> None:
    """The tests expect what another implementation says."""
    assert len(TEMPLATES) >= 12 and {t.home for t in TEMPLATES.values()} == {"lists", "texts", "sums"}
    for name in TEMPLATES:
        assert len(cases(name)) >= 7 and all(passing(name, None))
        assert {mutant.kind for mutant in faults(name)} <= {"operator", "constant", "variable"}


def test_a_fault_is_felt_where_it_is_needed() -> None:
    zero = next(k for k, m in enumerate(faults("add_all")) if "total = 1" in m.code)
    wrong = passing("average", Fault("add_all", zero))
    by_hand = [(sum(t.arguments[0]) + 1) // len(t.arguments[0]) == t.value for t in cases("average")]
    assert list(wrong) == by_hand and not all(by_hand)
    files = written(("add_all", "average"), {}, Fault("add_all", zero))
    assert [*files] == ["lists.py", "sums.py"] and files["sums.py"].startswith("from lists import add_all\n\ndef")


def test_lists_of_tests_are_what_running_the_package_before_and_after_says() -> None:
    """The pool knows it from single functions under other names; here each package is run whole."""
    for problem in mini_swe.problems("train")[:25]:
        info = problem.info
        tests = unit_tests_of(info["tests"])
        before, after = (outcomes(info[name], tests) for name in ("files", "fixed"))
        assert all(after) and not all(before)
        assert info["fail_to_pass"] == [line for line, passed in zip(info["tests"], before) if not passed]
        assert info["pass_to_pass"] == [line for line, passed in zip(info["tests"], before) if passed]
        assert info["issue"].replace(" should be ", " == ") in info["fail_to_pass"][0]


def test_a_package_has_one_fault_in_one_line() -> None:
    problems = mini_swe.problems("train")[:60]
    for problem in problems:
        info = problem.info
        assert [*info["files"]] == [*info["fixed"]] and 1 <= len(info["files"]) <= 3
        differ = [
            (name, n) for name in info["files"]
            for n, (a, b) in enumerate(zip(*(info[k][name].splitlines() for k in ("files", "fixed")), strict=True), 1)
            if a != b
        ]  # fmt: skip
        assert differ == [(info["file"], info["line"])]
        assert all(ast.parse(text) for text in info["files"].values()) and max(
            len(text.splitlines()) for text in info["files"].values()
        ) <= 40  # fmt: skip
    assert {p.level for p in problems} == {"operator", "constant", "variable"}
    assert len({p.info["function"] for p in problems}) > 8


def test_the_same_seed_gives_the_same_package_and_splits_share_none() -> None:
    task = MiniSWE(seed=4)
    assert task.problems("train")[3] == MiniSWE(seed=4, slips=0.5).problems("train")[3] != mini_swe.problems("train")[3]
    sides = [{str(p.info["files"]) for p in mini_swe.problems(split)[:50]} for split in ("train", "test")]
    assert not sides[0] & sides[1]
    json.dumps([p.info for p in mini_swe.problems("test")[:5]])
    with pytest.raises(UnknownNameError, match="mini-swe"):
        mini_swe.problems("dev")


def test_halves_of_templates_are_older_and_newer() -> None:
    old, fresh = (MiniSWE(templates=which).problems("train")[:40] for which in ("old", "fresh"))
    assert {p.info["function"] for p in old} <= {*templates_of("old")}
    assert {p.info["function"] for p in fresh} <= {*templates_of("fresh")}
    assert max(p.info["created_at"] for p in old) < "2025-07" < min(p.info["created_at"] for p in fresh)
    newer = "|".join(templates_of("fresh"))
    assert not any(name in str(p.info["files"]) for p in old for name in newer.split("|"))


# Episodes


def test_an_episode_by_hand() -> None:
    found = play(
        [" search clip", " open sums.py", " run", " replace sums.py 4 if x > high:", " open sums.py", " run", " submit"]
    )
    assert [r.segments[0].text for r in found[:4]] == [
        " sums.py 1\n",
        " 1|def clip(x, low, high):\n 2|    if x < low:\n 3|        return low\n 4|    if x > low:\n"
        " 5|        return high\n 6|    return x\n",
        " 2 passed 1 failed clip\n",
        " ok\n",
    ]
    assert " 4|    if x > high:\n" in found[4].segments[0].text and found[5].segments[0].text == " 3 passed 0 failed\n"
    assert [r.reward for r in found] == [0.0] * 6 + [1.0] and found[-1].terminated
    assert found[-1].info == {"success": True, "valid": True, "tests": 1.0}


def test_a_submission_without_an_edit_is_worth_nothing() -> None:
    (found,) = play([" submit"])
    assert found.terminated and found.reward == 0.0 and found.info["tests"] == pytest.approx(2 / 3)


def test_an_edit_that_mends_one_thing_and_breaks_another_is_worth_nothing() -> None:
    found = play([" replace sums.py 4 if x > high:", " replace lists.py 2 return min(xs)", " submit"])
    assert found[-1].reward == 0.0 and found[-1].info["tests"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    "text",
    [" open nothing.py", " open", " replace sums.py 7 x", " replace sums.py 0 x", " replace sums.py ² x", " search",
     " replace sums.py x y", " submit now", " hello", "", " replace none.py 1 x", " replace sums.py 99999 x"],
)  # fmt: skip
def test_what_cannot_be_done_changes_nothing(text: str) -> None:
    game = mini_swe.environment()
    game.reset(PROBLEM, 0)
    before = game.snapshot()["state"]
    result = game.step(Segment("assistant", text))
    assert result.segments[0].text == " no\n" and result.info is not None and not result.info["valid"]
    assert game.snapshot()["state"] == before and not result.terminated


def test_a_file_that_is_no_python_fails_its_own_tests_only() -> None:
    found = play([" replace sums.py 1 def clip((", " run"])
    assert found[1].segments[0].text == " 1 passed 2 failed clip\n"
    assert play([" replace sums.py 1", " run"])[1].segments[0].text == " 1 passed 2 failed clip\n", "an empty line"


def test_edits_that_cheat_or_never_end_pass_nothing() -> None:
    attempts = (
        "import os; os._exit(0)", "while True: pass", "raise SystemExit",
        "return type('E', (), {'__eq__': lambda *_: True})()",
    )  # fmt: skip
    for text in attempts[:3]:
        assert not any(outcomes({"sums.py": f"{text}\n{RIGHT}", "lists.py": LISTS}, unit_tests_of(TESTS)))
    cheat = f"def clip(x, low, high):\n    {attempts[3]}\n"
    assert outcomes({"sums.py": cheat}, unit_tests_of(TESTS[:2])) == (False, False)
    assert "== 5" not in program({"sums.py": SUMS}), "what is right never enters"


def test_scripts_repair_and_worse_ones_less() -> None:
    def repaired(slips: float) -> int:
        task = MiniSWE(slips=slips)
        return sum(task.script(mini_swe.problems("train")[i], Stream(i))[-1].reward == 1.0 for i in range(15))

    assert repaired(0.0) == 15 and repaired(0.9) < 8
    problem = mini_swe.problems("train")[0]
    assert MiniSWE(slips=0.4).script(problem, Stream(3)) == MiniSWE(slips=0.4).script(problem, Stream(3))
    texts = said(mini_swe.script(problem, Stream(0)))
    assert texts[-2:] == [" run", " submit"] and texts[-3].startswith(" replace") and len(texts) <= 5


def test_an_episode_can_be_gone_back_to_and_ends() -> None:
    for i in range(3):
        problem = mini_swe.problems("train")[i]
        texts = said(MiniSWE(slips=0.5).script(problem, Stream(i)))
        game, other = mini_swe.environment(), mini_swe.environment()
        game.reset(problem, 0)
        half = len(texts) // 2
        for text in texts[:half]:
            game.step(Segment("assistant", text))
        kept = json.loads(json.dumps(game.snapshot()))
        rest = [game.step(Segment("assistant", text)) for text in texts[half:]]
        other.reset(mini_swe.problems("train")[i + 1], 0)
        other.restore(kept)
        assert [other.step(Segment("assistant", text)) for text in texts[half:]] == rest
    steps = play([" open none.py"] * mini_swe.max_turns)
    assert [s.truncated for s in steps] == [False] * 9 + [True]
    with pytest.raises(EnvironmentFault, match="game of mini-swe is over"):
        play([" submit", " submit"])


def test_every_word_is_a_token_and_episodes_fit() -> None:
    words = build_word_tokenizer("code", 512)
    longest = 0
    for i in range(25):
        segments = MiniSWE(slips=0.3).script(mini_swe.problems("train")[i], Stream(i))
        tokens = [words.encode(s.text) for s in segments]
        assert not any(words.unk_token_id in t for t in tokens)
        assert [words.decode(t) for t in tokens] == [s.text for s in segments]
        assert all(len(t) < mini_swe.max_tokens for s, t in zip(segments, tokens) if s.role == "assistant")
        longest = max(longest, sum(map(len, tokens)) + len(tokens))
    assert longest < 512
    assert 100 <= len(words) <= 400
    tokens = words.encode(" 2|    if x < low:\n")
    assert [words.decode([t]) for t in tokens] == [" 2", "|", "   ", " if", " x", " <", " low", ":", "\n"]
    assert all(words.unk_token_id not in words.encode(t["example"]) for t in mini_swe.environment().tools())


def test_without_a_sandbox_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    from etude.tasks.agents import mini_swe as module

    monkeypatch.setattr(module, "refusal", lambda: "Code is not run here.")
    assert mini_swe.needs_reward() == "Code is not run here."
