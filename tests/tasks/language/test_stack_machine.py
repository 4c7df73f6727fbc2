"""The stack machine: what programs come to and how long they take, what rewrites are worth, and the problems."""

from __future__ import annotations

import pytest

from etude.core.episodes import Episode, Segment
from etude.core.errors import UnknownNameError
from etude.core.streams import Stream
from etude.tasks import resolve_task
from etude.tasks.language.stack_machine import (
    EVERY,
    LIMIT,
    LONGEST,
    NOTHING,
    SLOW,
    StackMachine,
    is_program,
    made_slow,
    passed,
    run,
    slow_of,
    stack_machine,
    worth,
)
from etude.tasks.pool import reserved


@pytest.mark.parametrize(
    ("program", "a", "b", "output", "steps"),
    [
        ("+", 7, 8, 5, 1), ("-", 3, 5, 8, 1), ("*", 7, 8, 6, 1), ("s-", 3, 5, 2, 2), ("d*", 0, 7, 9, 2),
        ("p", 4, 9, 4, 1), ("12+", 0, 0, 3, 3), ("nn0", 5, 5, 0, 3), ("+h1", 1, 1, 2, 2), ("h", 6, 7, 7, 1),
        ("(1+)", 0, 0, 2, 7), ("((1+))", 0, 0, 4, 17), ("(s)", 1, 2, 2, 5), ("1(2*)", 0, 0, 4, 8),
        ("((h))", 3, 4, 4, 3),
    ],
)  # fmt: skip
def test_what_programs_come_to_and_how_long_they_take(program: str, a: int, b: int, output: int, steps: int) -> None:
    """By hand: a loop costs one opcode where it begins, and one at the end of either pass."""
    assert is_program(program)
    assert run(program, [(a, b)]) == ([output], steps)


def test_all_inputs_go_through_side_by_side() -> None:
    for program in ("d*s2*+", "(+d)-", "12s-*"):
        whole, each = run(program, EVERY), [run(program, [one]) for one in EVERY]
        assert whole.outputs == [one.outputs and one.outputs[0] for one in each] or whole.outputs is None
        assert {one.steps for one in each} == {whole.steps}
    assert run("d*s2*+", EVERY).outputs == [(b * b + 2 * a) % 10 for a, b in EVERY]


def test_what_stops_in_the_middle_has_no_output_and_nothing_runs_for_ever() -> None:
    for program, steps in (("+-", 2), ("ppp", 3), ("(+)", 4), ("pps", 3)):
        assert is_program(program)
        assert run(program, [(1, 2)]) == (None, steps)
    assert run("pp", [(1, 2)]).outputs is None
    deep = "(" * 8 + "n" + ")" * 8
    assert is_program(deep) and run(deep, [(1, 2)]) == (None, LIMIT + 1)
    assert not is_program("n" * (LONGEST + 1)) and is_program("n" * LONGEST)
    assert not any(map(is_program, ("", " +", "+\n", ")(", "(()", "import os", "+" + chr(0x2795))))


def test_levels_are_in_order_and_only_time_is_compared_among_what_is_right() -> None:
    slow = run("n+(1*)2p", EVERY)
    assert slow.steps == 11
    texts = ("", "++", "-", "n+(1*)2p", "n+1*n", "+", "nnnnnnnn+nnnnn")
    assert [worth(slow, text, EVERY) for text in texts] == pytest.approx([-1, -0.5, 0, 1, 1 + 6 / 11, 1 + 10 / 11, 1])


def test_the_share_of_tests_that_are_passed() -> None:
    inputs = [(3, 4), (5, 6), (0, 0), (9, 9)]
    assert passed("+", inputs, [7, 1, 0, 8]) == 1
    assert passed("*", inputs, [7, 1, 0, 1]) == 0.5
    assert passed("++", inputs, [7, 1, 0, 8]) == 0 == passed("x", inputs, [7, 1, 0, 8])


def test_slow_programs_and_their_worked_answers() -> None:
    assert resolve_task("stack-machine") == stack_machine
    saved = []
    for split in stack_machine.splits():
        for i in range(40):
            problem = stack_machine.problems(split)[i]
            slow, worked = slow_of(problem), str(problem.info["demonstration"])
            assert is_program(slow) and len(slow) <= SLOW[1] and problem.info["candidates"] == [slow]
            assert run(worked, EVERY).outputs == run(slow, EVERY).outputs is not None
            saved.append(stack_machine.score(problem, worked) - 1)
            assert saved[-1] >= 0 and stack_machine.score(problem, slow) == 1
            assert len({*problem.info["tests"]}) == 6
            won = stack_machine.success(Episode(problem, [Segment("assistant", worked)]))
            assert won == (run(worked, EVERY).steps <= 0.9 * run(slow, EVERY).steps + 1e-9)
            scores = dict(zip(problem.info["responses"], problem.info["scores"]))
            assert scores == {text: stack_machine.score(problem, text) for text in scores} and scores[slow] == 1
            assert scores[problem.info["chosen"]] == max(scores.values()) > scores.get(problem.info["rejected"], -1)
    assert 0.1 < sum(saved) / len(saved) < 0.4 and min(saved) == 0  # some worked answers save nothing
    with pytest.raises(UnknownNameError):
        stack_machine.problems("dev")


def test_pieces_in_between_change_nothing_whichever_are_left_out() -> None:
    for piece in NOTHING:
        assert run(f"{piece}-", EVERY).outputs == run("-", EVERY).outputs
    for seed in range(20):
        pieces = made_slow("d*s2*-", Stream(seed).numpy)
        assert "".join(text for text, needed in pieces if needed) == "d*s2*-"
        assert SLOW[0] <= len("".join(text for text, _ in pieces)) <= SLOW[1]
        for gone in range(len(pieces)):
            left = "".join(text for i, (text, needed) in enumerate(pieces) if needed or i != gone)
            assert run(left, EVERY).outputs == run("d*s2*-", EVERY).outputs


def test_programs_from_examples() -> None:
    task, right = StackMachine(asks="examples", noise=0.5), 0
    for split in task.splits():
        for i in range(40):
            problem = task.problems(split)[i]
            shown = str(problem.prompt).removesuffix(">").split(",")
            (program,) = {t for t in problem.info["responses"] if problem.info["scores"][0] == 1} & {
                problem.info["responses"][0]
            }
            assert is_program(program) and task.score(problem, program) == 1 and reserved(program) == (split == "test")
            assert len(shown) == 3 and len(problem.info["tests"]) == 8
            for one in shown:
                inputs, _, output = one.partition("=")
                assert run(program, [(int(inputs[0]), int(inputs[1]))]).outputs == [int(output)]
                assert (int(inputs[0]), int(inputs[1])) not in problem.info["tests"]  # tests are hidden
            right += task.success(Episode(problem, [Segment("assistant", str(problem.info["demonstration"]))]))
    assert 40 < right < 80  # of 80, half of which have another opcode somewhere


def test_the_divide_is_by_the_program_before_it_is_made_slow() -> None:
    """So that no test program is a training program with other pieces in between."""
    found = {split: set[str]() for split in stack_machine.splits()}
    for split in found:
        every = StackMachine(kept=0.0).problems(split)
        found[split] = {str(every[i].info["demonstration"]) for i in range(60)}
        assert all(reserved(program) == (split == "test") for program in found[split])
    assert not found["train"] & found["test"]
