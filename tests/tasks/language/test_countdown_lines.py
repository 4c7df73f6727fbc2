"""Countdown in lines: what is taken back, what is right, and worked answers with a known number of wrong branches."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from etude.core.episodes import Episode, Problem, Segment
from etude.core.errors import ConfigError, UnknownNameError
from etude.tasks.language.countdown import Countdown
from etude.tasks.language.countdown_lines import (
    Branch,
    CountdownLines,
    applied,
    backtracks,
    countdown_lines,
    draw_branches,
    moves,
    reaches,
    remaining,
    solve,
    trace,
)

ASKED = Problem("1", "3,5,8->16:", 16, info={"numbers": (3, 5, 8)})


def worked(count: int, *, split: str = "train", **fields: object) -> list[tuple[Problem, str]]:
    problems = CountdownLines(**fields).problems(split)[:count]  # type: ignore[arg-type]
    return [(p, str(p.info["demonstration"])) for p in problems]


def branches(lines: Sequence[str], numbers: Sequence[int]) -> list[tuple[int, list[str], list[str]]]:
    """An independent reading: of each wrong branch after how many steps it leaves, these steps, and its own."""
    found: list[tuple[int, list[str], list[str]]] = []
    open_: list[str] = []
    for line in lines:
        if line[0].isdigit():
            open_.append(line)
        else:
            after = 0 if line == "restart" else int(line.split()[1])
            found.append((after, open_[:after], open_[after:]))
            open_ = open_[:after]
    return found


def value(step: str) -> bool:
    """Whether a step comes out right, by Python."""
    left, _, right = step.partition("=")
    return float(eval(left, {"__builtins__": {}})) == float(right)


@pytest.fixture(scope="module")
def with_branches() -> dict[int, list[tuple[Problem, str]]]:
    """By number of branches; of the same problems."""
    return {b: worked(30, numbers=(3, 4), backtracks=b) for b in (0, 1, 3, 10)}


@pytest.mark.slow
def test_a_trace_has_as_many_branches_as_asked_and_without_them_is_the_solution(
    with_branches: dict[int, list[tuple[Problem, str]]],
) -> None:
    """Identity 1: the phrases are counted, branches with their phrases deleted leave the trace of none."""
    for b, made in with_branches.items():
        for (problem, text), (same, plain) in zip(made, with_branches[0]):
            assert problem.prompt == same.prompt
            assert len(re.findall(r"^(?:restart|back \d)$", text, re.MULTILINE)) == backtracks(text) == b
            lines = text.splitlines()
            for after, _, wrong in reversed(branches(lines, problem.info["numbers"])):
                begin = next(i for i in range(len(lines)) if lines[i : i + len(wrong)] == wrong
                             and lines[i + len(wrong)] == (f"back {after}" if after else "restart"))  # fmt: skip
                del lines[begin : begin + len(wrong) + 1]
            assert "\n".join(lines) == plain
            assert text.splitlines()[-1] == plain.splitlines()[-1]
            assert countdown_lines.answer(text) == str(problem.answer) and countdown_lines.score(problem, text) == 1.0


@pytest.mark.slow
def test_steps_come_out_right_and_branches_end_elsewhere(with_branches: dict[int, list[tuple[Problem, str]]]) -> None:
    """Identity 2. Branches leave in order, from where the solution is, and none leaves by its own next step."""
    for b, made in with_branches.items():
        for (problem, text), (_, plain) in zip(made, with_branches[0]):
            numbers, steps = problem.info["numbers"], plain.splitlines()
            assert all(map(value, steps)) and applied(numbers, steps) == [problem.answer]
            found = branches(text.splitlines(), numbers)
            assert [after for after, *_ in found] == sorted(after for after, *_ in found)
            for after, before, wrong in found:
                assert before == steps[:after] and wrong[0] != steps[after]
                (end,) = applied(numbers, [*before, *wrong]) or ()
                assert end != problem.answer
            assert len({(a, *w) for a, _, w in found}) == b


def test_what_remains_by_hand() -> None:
    text = "3*5=15\n15-8=7\nrestart\n8-5=3\n3+3=6\nback 1\n3*3=9\nrestart\n5-3=2\n2*8=16"
    assert (remaining(text), backtracks(text)) == (["5-3=2", "2*8=16"], 3)
    assert countdown_lines.score(ASKED, text) == 1.0 and countdown_lines.solution_steps(text) == ["5-3=2", "2*8=16"]
    solution = ["5-3=2", "2*8=16"]
    wrong = [Branch(0, ("8-5=3", "3+3=6")), Branch(1, ("8+2=10",)), Branch(1, ("8-2=6",))]
    assert trace(solution, wrong) == [
        "8-5=3", "3+3=6", "restart", "5-3=2", "8+2=10", "back 1", "8-2=6", "back 1", "2*8=16",
    ]  # fmt: skip
    assert trace(solution, []) == solution


@pytest.mark.parametrize(
    ("text", "score", "answer"),
    [
        ("5-3=2\n2*8=16", 1, "16"), (" 5-3=2 \n8*2=16\n", 1, "16"), ("(5-3)*8", 1, "16"),
        ("5-3=2\n2+8=10\nback 1\n2*8=16", 1, "16"), ("5-3=9\nrestart\n5-3=2\n2*8=16", 1, "16"),
        ("2*8=16", 0, "16"), ("5-3=2", 0, "2"), ("5-3=2\n2*8=15", 0, "15"), ("5-3=2\n2+8=16", 0, "16"),
        ("8+8=16", 0, "16"), ("3+5=8\n8+8=16\n16-0=16", 0, "16"), ("2*8", 0, "16"), ("3-5=2\n2*8=16", 0, "16"),
        ("5/3=2\n2*8=16", 0, "16"), ("8/0=0", 0, "0"),
        ("restart\n5-3=2\n2*8=16", 0, ""), ("5-3=2\nback 1\n2*8=16", 0, ""), ("5-3=2\nback 2\n2*8=16", 0, ""),
        ("5-3=2\n2*8=16\nrestart", 0, ""), ("5-3=2\n\n2*8=16", 0, ""), ("5-3=2\nso\n2*8=16", 0, ""), ("", 0, ""),
        ("back 0", 0, ""), ("5-3=2 2*8=16", 0, ""), ("٥-3=2\n2*8=16", 0, ""), ("8/(5-5)", 0, ""),
    ],
)  # fmt: skip
def test_what_is_right_and_what_it_ends_at(text: str, score: int, answer: str) -> None:
    assert (countdown_lines.score(ASKED, text), countdown_lines.answer(text)) == (score, answer)


@pytest.mark.slow
def test_every_problem_of_countdown_can_be_solved_in_lines() -> None:
    """Whole numbers not below 0 are enough, whatever the expression that made the target has on its way."""
    own, lines = Countdown(numbers=(3, 4)).problems("test"), CountdownLines(numbers=(3, 4)).problems("test")
    assert len(own) == len(lines)
    for theirs, ours in zip(own[:60], lines[:60]):
        assert (theirs.prompt, theirs.answer, theirs.level) == (ours.prompt, ours.answer, ours.level)
        assert countdown_lines.score(ours, ours.info["demonstration"]) == 1.0
        assert countdown_lines.score(ours, theirs.info["demonstration"]) == 1.0
    assert countdown_lines.problems("train")[9] == CountdownLines().problems("train")[9]


def test_a_solution_that_there_is_not_is_said() -> None:
    random = np.random.default_rng(0)
    assert not reaches((1, 1, 1), 50) and reaches((1, 2, 3), 9)
    with pytest.raises(ValueError, match=r"No steps lead from \(1, 1, 1\) to 50"):
        solve((1, 1, 1), 50, random)
    assert solve((2, 8), 4, random) == ["8/2=4"] and "0/0" not in str(moves((0, 0)))
    few = draw_branches((1, 1, 1), 3, ["1+1=2", "2+1=3"], 10, random)
    assert len(few) == 10 and all(applied((1, 1, 1), [*["1+1=2"][: b.after], *b.steps]) != [3] for b in few)


# What is shown in their place


@pytest.mark.slow
def test_traces_of_others_are_the_same_texts_of_other_problems() -> None:
    """Identity 3: no token more or less, and each text is right where it comes from."""
    right, others = worked(20, backtracks=2), worked(20, backtracks=2, shown="of-others")
    assert [p.prompt for p, _ in right] == [p.prompt for p, _ in others]
    assert Counter("".join(t for _, t in right)) == Counter("".join(t for _, t in others))
    assert Counter(t for _, t in right) == Counter(t for _, t in others)
    for i, (_, text) in enumerate(others):
        assert text == right[i + 1 - 2 * (i % 2)][1]
    assert sum(countdown_lines.score(p, t) for p, t in others) < 3


def test_shuffled_lines_are_the_same_lines_and_end_alike() -> None:
    right, shuffled = worked(20, backtracks=3), worked(20, backtracks=3, shown="shuffled")
    for (_, text), (_, other) in zip(right, shuffled):
        assert sorted(text.splitlines()) == sorted(other.splitlines())
        assert text.splitlines()[-1] == other.splitlines()[-1]
    assert sum(text == other for (_, text), (_, other) in zip(right, shuffled)) < 3


def test_wrong_traces_have_as_many_branches_and_end_elsewhere() -> None:
    for problem, text in worked(20, backtracks=3, shown="wrong"):
        assert backtracks(text) == 3 and remaining(text)
        assert countdown_lines.answer(text) not in ("", str(problem.answer))
        left = applied(problem.info["numbers"], remaining(text))
        assert left == [int(countdown_lines.answer(text))]


def test_steps_report_how_often_completions_go_back() -> None:
    """Lines of every turn count, and of no prompt; those that cannot be read too."""
    said = {"restart\nso\nback 1\n2*8=16": 2, "5-3=2\n2*8=16": 0, "": 0, "3*5=15\nrestart": 1}
    for text, count in said.items():
        asked = Segment("user", "restart\n"), Segment("assistant", text)
        assert countdown_lines.metrics(Episode(Problem("1", "?"), [*asked])) == {"backtracks": count}
    for problem, text in worked(3, backtracks=3):
        assert countdown_lines.metrics(Episode(problem, [Segment("assistant", text)])) == {"backtracks": 3}


def test_expressions_are_those_of_countdown() -> None:
    for (problem, text), own in zip(worked(5, shown="expressions"), Countdown().problems("train")):
        assert text == own.info["demonstration"] and countdown_lines.score(problem, text) == 1.0


@pytest.mark.slow
def test_whatever_is_shown_the_problems_are_the_same_and_it_is_said_what_does_not_show_how() -> None:
    for split in ("train", "test"):
        prompts = [p.prompt for p, _ in worked(6, split=split)]
        for shown in ("wrong", "shuffled", "of-others", "expressions"):
            assert [p.prompt for p, _ in worked(6, split=split, shown=shown)] == prompts
    told = {shown: CountdownLines(shown=shown).shows_how  # type: ignore[arg-type]
            for shown in ("traces", "expressions", "wrong", "shuffled", "of-others")}  # fmt: skip
    assert [shown for shown, right in told.items() if right] == ["traces", "expressions"]


@pytest.mark.slow
def test_the_longest_traces_fit() -> None:
    """A byte is a token of the shipped model; one more ends the text."""
    for numbers in (3, 4, 5):
        longest = max(len(text) for _, text in worked(40, numbers=(numbers,), backtracks=10))
        assert longest < CountdownLines.max_tokens


def test_what_is_refused_of_lines() -> None:
    with pytest.raises(UnknownNameError):
        countdown_lines.problems("valid")
    with pytest.raises(ConfigError, match="which have no branches"):
        CountdownLines(shown="expressions", backtracks=1)
    for fields in ({"numbers": ()}, {"numbers": (2,)}, {"backtracks": 11}, {"backtracks": -1}, {"shown": "lines"}):
        with pytest.raises(ConfigError):
            CountdownLines(**fields)  # type: ignore[arg-type]
