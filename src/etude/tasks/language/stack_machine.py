"""Stack machine: programs that are run exactly. Make one faster, or find one from examples of what it does.

A machine has a stack of digits, on which two inputs lie at first, and opcodes of one character:

    0 1 2      push it                      + - *      of the two on top, modulo 10
    d s p      double, swap, drop the top   n h        nothing; halt
    (x)        x twice

What is on top in the end is the output. How long a program takes is how many opcodes are executed, in loops each time:
it is exact, the same on every machine, and depends on the program alone. With asks='faster' (the default)

    prompt      n+(1*)2p>           a program that somebody made slow: it takes 11 steps
    completion  +                   one that comes to the same: it takes 1

and with asks='examples'

    prompt      34=7,80=8,15=6>     two inputs and the output, three times
    completion  +                   a program that does so, also on eight other inputs

A completion is never run but here, opcode by opcode, and stops after `LIMIT` steps at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from etude.core.episodes import Episode, Problem
from etude.core.errors import UnknownNameError
from etude.core.fields import Count, Probability, WholeNumber
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.tasks.pool import Pool, reserved

OPCODES = "012+-*dspnh()"
LONGEST, LIMIT = 20, 200
"""Characters of a program at most, and steps after which it is stopped."""
NEEDS = {"+": 2, "-": 2, "*": 2, "s": 2, "d": 1, "p": 1}
"""How many digits must lie on the stack; the others need none."""
NO_PROGRAM, FAULT, WRONG, RIGHT = -1.0, -0.5, 0.0, 1.0
"""What is no program is worth, what stops in the middle, what comes to something else, and what is as slow."""
NOTHING = ("n", "ss", "dp", "0+", "1*", "2p", "dsp", "(n)", "(s)")
"""What changes nothing, wherever two digits lie on the stack."""
PLAIN, QUICK, SLOW = 10, 5, (8, 16)
"""Most opcodes of a program from examples, and of one before it is made slow; fewest and most afterwards."""
TESTS, HIDDEN, SHOWN = 6, 8, 3
"""Inputs that a faster program is tried on; that one from examples is; and examples that are shown."""
OPTIMISED = 0.1
"""Share of its time that a program must have lost to count as faster."""
EVERY = tuple((a, b) for a in range(10) for b in range(10))
"""All inputs that there are."""


class Ran(NamedTuple):
    """What came of a program.

    Args:
        outputs: the digit on top in the end, for each of the inputs; None where it stopped in the middle, or the stack
            is empty.
        steps: opcodes that were executed, as many for all inputs.
    """

    outputs: list[int] | None
    steps: int


def is_program(text: str) -> bool:
    """Whether a text is a program: opcodes alone, at least one and not too many, every loop closed.

    >>> [is_program(text) for text in ("12+", "(n(s))", "", "(n", "n)(", "x")]
    [True, True, False, False, False, False]
    """
    depth = 0
    for c in text:
        depth += (c == "(") - (c == ")")
        if c not in OPCODES or depth < 0:
            return False
    return depth == 0 and 0 < len(text) <= LONGEST


def run(program: str, inputs: Sequence[Sequence[int]]) -> Ran:
    """Run a program on stacks with these inputs, of each the last on top; all go through it side by side.

    >>> run("+", [(3, 4), (5, 6)]), run("(d+)", [(0, 3)])
    (Ran(outputs=[7, 1], steps=1), Ran(outputs=[2], steps=7))
    >>> run("ppp", [(3, 4)]), run("h+", [(3, 4)])
    (Ran(outputs=None, steps=3), Ran(outputs=[4], steps=1))
    """
    stack, at, steps = [list(column) for column in zip(*inputs)], 0, 0
    begun: list[int] = []  # where open loops began, those in their second pass as -1 minus that
    while at < len(program) and program[at] != "h":
        steps += 1
        op = program[at]
        if steps > LIMIT or len(stack) < NEEDS.get(op, 0):
            return Ran(None, steps)
        if op == "(":
            begun.append(at)
        elif op == ")":
            if (start := begun.pop()) >= 0:
                begun.append(-1 - start)
                at = start
        else:
            execute(op, stack, len(inputs))
        at += 1
    steps += at < len(program)  # to halt
    return Ran(stack[-1] if stack else None, steps)


def execute(op: str, stack: list[list[int]], count: int) -> None:
    """One opcode on so many stacks, where enough lies on them."""
    if op.isdigit():
        stack.append([int(op)] * count)
    elif op == "d":
        stack.append(stack[-1])
    elif op == "p":
        stack.pop()
    elif op == "s":
        stack[-2:] = stack[-1], stack[-2]
    elif op in "+-*":
        then, first = stack.pop(), stack.pop()
        stack.append([_of_two(op, a, b) for a, b in zip(first, then)])


def _of_two(op: str, a: int, b: int) -> int:
    return (a + b if op == "+" else a - b if op == "-" else a * b) % 10


def worth(slow: Ran, text: str, inputs: Sequence[Sequence[int]]) -> float:
    """What a rewrite is worth of a program that does so: 1 + the share of its time that is saved, less if it is wrong.

    >>> inputs = [(3, 4), (5, 6)]
    >>> [worth(run("n+n2p", inputs), text, inputs) for text in ("+", "n+n2p", "(+n)", "-", "ppn", "plus")]
    [1.8, 1.0, -0.5, 0.0, -0.5, -1.0]
    """
    if not is_program(text):
        return NO_PROGRAM
    found = run(text, inputs)
    if found.outputs is None:
        return FAULT
    return RIGHT + max(0.0, 1 - found.steps / slow.steps) if found.outputs == slow.outputs else WRONG


def speedups(scores: ArrayLike) -> NDArray[np.float64]:
    """By what factor each rewrite is faster, of what it is worth; 1 where it is wrong or saves less than a tenth.

    Their mean is what is called SP, the share of those above 1 %OPT.

    >>> speedups([0.0, 1.0, 1.05, 1.1, 1.5]).round(4).tolist()
    [1.0, 1.0, 1.0, 1.1111, 2.0]
    """
    found = np.asarray(scores, dtype=np.float64)
    return np.where(found >= RIGHT + OPTIMISED - 1e-9, 1 / (1 + RIGHT - found), 1.0)


def passed(text: str, inputs: Sequence[Sequence[int]], outputs: Sequence[int]) -> float:
    """The share of inputs on which a text, as a program, has the right output.

    >>> passed("+", [(3, 4), (5, 6)], [7, 2]), passed("plus", [(3, 4)], [7])
    (0.5, 0.0)
    """
    found = run(text, inputs).outputs if is_program(text) else None
    return 0.0 if found is None else sum(a == b for a, b in zip(found, outputs)) / len(outputs)


class StackMachine(LanguageTask):
    """Programs of a small stack machine: a faster one that comes to the same, or one that does as examples show.

    'faster': the reward is `worth` on six inputs, from -1 to 2, and a success is a program that is right and takes at
    least a tenth less time. The worked answer leaves out some of what changes nothing. 'examples': the reward is the
    share of eight inputs, not those shown, on which the program is right, and a success is all of them.

    Problems come with a `demonstration`, scored `responses`, a pair `chosen` and `rejected`, and, of a slow program,
    with itself in `candidates`.

    Args:
        asks: what is asked.
        kept: chance of each piece that changes nothing to stay in a worked answer.
        noise: chance of a worked program from examples to have an opcode that is any.
        size: problems of the split 'train'; smaller pools are the first of larger ones.
        seed: which problems are drawn. The train/test divide is the same for every seed.

    Splits: 'train' and 'test', which share no program.

    >>> task = StackMachine()
    >>> problem = task.problems("train")[0]
    >>> task.score(problem, problem.info["candidates"][0]), task.score(problem, "nonsense")
    (1.0, -1.0)
    """

    id: ClassVar[str] = "stack-machine"
    max_tokens: ClassVar[int] = LONGEST + 1
    shows_how: ClassVar[bool] = False

    asks: Literal["faster", "examples"] = "faster"
    kept: Probability = 0.7
    noise: Probability = 0.3
    size: Count = 4000
    seed: WholeNumber = 0

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in self.splits():
            raise UnknownNameError("split of stack-machine", split, self.splits())
        make = self._slow if self.asks == "faster" else self._shown
        return Pool(lambda i: make(split, i), self.size if split == "train" else 1_000)

    def score(self, problem: Problem, completion: str) -> float:
        text = completion.strip()
        if self.asks == "examples":
            return passed(text, problem.info["tests"], problem.info["outputs"])
        return worth(run(slow_of(problem), problem.info["tests"]), text, problem.info["tests"])

    def success(self, episode: Episode) -> bool:
        found = self.score(episode.problem, episode.completion)
        return found >= RIGHT if self.asks == "examples" else bool(speedups([found])[0] > 1)

    def _slow(self, split: str, index: int) -> Problem:
        random = Stream(self.seed).split("stack-machine", split, index).numpy
        pieces = made_slow(drawn(QUICK, "012+-*ds", split, random), random)
        slow = "".join(text for text, _ in pieces)
        worked = "".join(text for text, needed in pieces if needed or random.random() < self.kept)
        tests = _inputs(TESTS, random)
        others, found = [worked, slow, spoilt(worked, random), spoilt(slow, random)], run(slow, tests)
        scored = _scored({text: worth(found, text, tests) for text in others}, random)
        info = {"demonstration": worked, "candidates": [slow], "tests": tests, **scored}
        return Problem(f"stack-machine/{split}/{index}", f"{slow}>", info=info)

    def _shown(self, split: str, index: int) -> Problem:
        random = Stream(self.seed).split("stack-machine", "examples", split, index).numpy
        program = drawn(PLAIN, "012+-*dsph", split, random)
        inputs = _inputs(SHOWN + HIDDEN, random)
        outputs = run(program, inputs).outputs
        assert outputs is not None
        worked = spoilt(program, random) if random.random() < self.noise else program
        others, hidden = [program, *(spoilt(program, random) for _ in range(3))], (inputs[SHOWN:], outputs[SHOWN:])
        scored = _scored({text: passed(text, *hidden) for text in others}, random)
        prompt = ",".join(f"{a}{b}={output}" for (a, b), output in zip(inputs[:SHOWN], outputs))
        info = {"demonstration": worked, "tests": hidden[0], "outputs": hidden[1], **scored}
        return Problem(f"stack-machine/examples/{split}/{index}", f"{prompt}>", info=info)


def drawn(most: int, opcodes: str, split: str, random: Generator) -> str:
    """A program of two to so many of these opcodes that runs, and whose output depends on either input."""
    while True:
        program = "".join(opcodes[i] for i in random.integers(len(opcodes), size=random.integers(2, most + 1)))
        if reserved(program) == (split == "test") and _depends(program):
            return program


def _depends(program: str) -> bool:
    """Whether it runs, and either input alone changes the output where the other is 3."""
    one, other = (run(program, some).outputs for some in (EVERY[30:40], EVERY[3::10]))
    return one is not None and other is not None and len({*one}) > 1 and len({*other}) > 1


def made_slow(program: str, random: Generator) -> list[tuple[str, bool]]:
    """Its opcodes with pieces in between that change nothing, in order; True with what is needed."""
    pieces, length = [(op, True) for op in program], len(program)
    wanted = int(random.integers(SLOW[0], SLOW[1] + 1))
    while length < wanted:
        piece, place = NOTHING[int(random.integers(len(NOTHING)))], int(random.integers(len(pieces) + 1))
        before = "".join(text for text, _ in pieces[:place])
        if length + len(piece) <= SLOW[1] and run(before + piece, EVERY[:1]).outputs is not None:
            pieces.insert(place, (piece, False))
            length += len(piece)
    return pieces


def spoilt(program: str, random: Generator) -> str:
    """The program with another opcode, any, in the place of one.

    >>> one = spoilt("12+", Stream(0).numpy)
    >>> len(one), sum(a != b for a, b in zip(one, "12+"))
    (3, 1)
    """
    place = int(random.integers(len(program)))
    others = [op for op in OPCODES if op != program[place]]
    return program[:place] + others[int(random.integers(len(others)))] + program[place + 1 :]


def _inputs(count: int, random: Generator) -> list[tuple[int, int]]:
    """So many different inputs."""
    return [EVERY[i] for i in random.choice(len(EVERY), count, replace=False).tolist()]


def _scored(scores: dict[str, float], random: Generator) -> dict[str, Any]:
    """Scored answers, and two of them of which one is better; where all are equal, the first and nonsense."""
    responses = list(scores)
    worse = [text for text in responses if scores[text] < max(scores.values())]
    chosen = next(text for text in responses if text not in worse)
    rejected = worse[int(random.integers(len(worse)))] if worse else ""
    return {"chosen": chosen, "rejected": rejected, "responses": responses, "scores": list(scores.values())}


def slow_of(problem: Problem) -> str:
    """The program that a prompt shows."""
    return str(problem.prompt).partition(">")[0]


stack_machine = StackMachine()
