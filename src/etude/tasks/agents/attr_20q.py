"""Attr-20Q: find the hidden object by asking about its attributes, in as few turns as possible.

Thirty-two objects (A, B, ...) have eight random binary attributes (a to h). One is hidden; two of its attributes are
told. Each turn the player asks about an attribute and a value, or says an object:

    who? c1 e0          the hidden object has c = 1 and e = 0
    ask b1              does it have b = 1?
    no
    say K
    yes                 found: the game ends

The table of attributes is the same in every game and is never shown: the player has to know it. Every turn costs
the same, save the one that names the object. Anything else that is said is answered with `invalid`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import combinations
from string import ascii_lowercase, ascii_uppercase
from typing import Annotated, Any, ClassVar

from etude.core.episodes import Problem, Segment, StopReason
from etude.core.errors import ConfigError, EnvironmentFault, UnknownNameError
from etude.core.fields import Count, Interval, NonNegative, Probability, WholeNumber
from etude.core.streams import Stream
from etude.core.task import Environment, LanguageTask, StepResult
from etude.tasks.pool import reserved

NAMES = ascii_uppercase + ascii_lowercase
Table = dict[str, str]
"""Attributes by object: '01001101', one character per attribute."""


class Attr20Q(LanguageTask):
    """Twenty questions about a fixed table: `-cost` per turn, 0 for the turn that names the hidden object.

    Args:
        objects: how many there are.
        attributes: binary attributes of each; at least enough to tell the objects apart.
        hints: attributes told at the start.
        max_turns: turns after which the game is truncated.
        cost: what a turn costs, in reward.
        seed: which table.

    Splits: 'train' and 'test', which share no opening.

    >>> game = Attr20Q(cost=0.5).environment()
    >>> shown = game.reset(Problem("attr-20q/1", "who? c1 e0\\n", "K"), seed=0)
    >>> [abs(game.step(Segment("assistant", said)).reward) for said in ("ask b1", "say K")]
    [0.5, 0.0]
    """

    id: ClassVar[str] = "attr-20q"
    max_tokens: ClassVar[int] = 8

    objects: Annotated[int, Interval(ge=2, le=52)] = 32
    attributes: Annotated[int, Interval(ge=1, le=16)] = 8
    hints: Count = 2
    max_turns: Count = 10  # type: ignore[misc]  # of each task, where others have one for all
    cost: NonNegative = 0.1
    seed: WholeNumber = 0

    def check(self) -> None:
        if 2**self.attributes < self.objects:
            raise ConfigError(
                f"Attr20Q.attributes must tell {self.objects} objects apart: at least "
                f"{(self.objects - 1).bit_length()}, got {self.attributes}."
            )
        if self.hints > self.attributes:
            raise ConfigError(f"Attr20Q.hints must be at most the {self.attributes} attributes, got {self.hints}.")

    @property
    def table(self) -> Table:
        """The attributes of every object."""
        return _table(self.objects, self.attributes, self.seed)

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in self.splits():
            raise UnknownNameError("split of attr-20q", split, self.splits())
        return _problems(self, split)

    def script(self, problem: Problem, stream: Stream) -> list[Segment]:
        """A game played well (it always guesses what is still possible): what supervised methods learn from."""
        return scripted_episode(self, problem, stream, guessing=0.2, attention=1.0)

    def environment(self) -> Environment:
        return Oracle(self)

    def answer(self, completion: str) -> str:
        """The last object that was said."""
        return str((re.findall(r"say ([A-Za-z])", completion) or [""])[-1])


@cache
def _table(objects: int, attributes: int, seed: int) -> Table:
    codes = Stream(seed).split("attr-20q", "table").numpy.permutation(2**attributes)[:objects]
    return {name: format(code, f"0{attributes}b") for name, code in zip(NAMES, codes)}


@cache
def _problems(task: Attr20Q, split: str) -> tuple[Problem, ...]:
    """Every object with every set of hints whose opening is on the split's side, in random order.

    Raises: ConfigError if there is none.
    """
    problems = []
    for name, bits in task.table.items():
        for told in combinations(range(task.attributes), task.hints):
            opening = " ".join(f"{ascii_lowercase[k]}{bits[k]}" for k in told)
            if reserved(opening) == (split == "test"):
                problems.append((f"who? {opening}\n", name))
    if not problems:
        raise ConfigError(f"This attr-20q has no opening for '{split}'; give it more attributes or other hints.")
    order = Stream(task.seed).split("attr-20q", split).numpy.permutation(len(problems))
    level = f"hints{task.hints}"
    return tuple(Problem(f"attr-20q/{split}/{i}", problems[k][0], problems[k][1], level) for i, k in enumerate(order))


class Oracle:
    """One game. `info` of a step: `success` (found), `valid` (the utterance was understood)."""

    def __init__(self, task: Attr20Q) -> None:
        self.task, self.secret, self.turn, self.over = task, "", 0, True

    def reset(self, problem: Problem, seed: int) -> list[Segment]:
        self.secret, self.turn, self.over = str(problem.answer), 0, False
        return [Segment("user", str(problem.prompt))]

    def step(self, segment: Segment) -> StepResult:
        """Answer a question or a guess. Raises EnvironmentFault when the game is over."""
        if self.over:
            raise EnvironmentFault("This game of attr-20q is over; call reset() to start another.")
        self.turn += 1
        text, answer = segment.text.strip(), self.reply(segment.text)
        guessed = text == f"say {self.secret}"
        late = not guessed and self.turn >= self.task.max_turns
        self.over = guessed or late
        info = {"success": guessed, "valid": answer != "invalid"}
        return StepResult([Segment("user", f"{answer}\n")], 0.0 if guessed else -self.task.cost, guessed, late, info)

    def reply(self, utterance: str) -> str:
        """'yes', 'no', or 'invalid'."""
        if guess := re.fullmatch(r"say ([A-Za-z])", utterance.strip()):
            return "invalid" if guess[1] not in self.task.table else "yes" if guess[1] == self.secret else "no"
        if question := re.fullmatch(r"ask ([a-z])([01])", utterance.strip()):
            k = ascii_lowercase.index(question[1])
            if k < self.task.attributes:
                return "yes" if self.task.table[self.secret][k] == question[2] else "no"
        return "invalid"

    def snapshot(self) -> dict[str, Any]:
        """Where the game stands, as JSON values."""
        return {"secret": self.secret, "turn": self.turn, "over": self.over}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a snapshot."""
        self.secret, self.turn, self.over = state["secret"], state["turn"], state["over"]

    def tools(self) -> list[dict[str, Any]]:
        """What can be said."""
        attributes, objects = ascii_lowercase[: self.task.attributes], list(self.task.table)
        return [
            {"name": "ask", "example": "ask b1", "arguments": {"attribute": list(attributes), "value": ["0", "1"]}},
            {"name": "say", "example": f"say {objects[-1]}", "arguments": {"object": objects}},
        ]


def scripted_episode(
    task: Attr20Q, problem: Problem, stream: Stream, guessing: Probability = 0.5, attention: Probability = 0.6
) -> list[Segment]:
    """A whole game by a mediocre player, with rewards: what `tiny` is pre-trained on.

    Each turn it guesses with probability `guessing`, else asks any question, known or not. A guess respects
    everything known so far with probability `attention`, else it is any object.
    """
    game, random = task.environment(), stream.numpy
    segments = game.reset(problem, 0)
    possible = [name for name, bits in task.table.items() if _fits(bits, str(problem.prompt))]
    over = False
    while not over:
        names = possible if random.random() < attention else list(task.table)
        if random.random() < guessing:
            text = f"say {names[random.integers(len(names))]}"
        else:
            text = f"ask {ascii_lowercase[random.integers(task.attributes)]}{random.integers(2)}"
        result = game.step(Segment("assistant", text))
        segments += [Segment("assistant", text, reward=result.reward), *result.segments]
        answer = result.segments[0].text.strip()
        possible = [name for name in possible if _agrees(task.table, name, text, answer)]
        over = result.terminated or result.truncated
    if result.truncated:
        segments[-1].info["stop"] = StopReason.TRUNCATED
    return segments


def _fits(bits: str, opening: str) -> bool:
    return all(bits[ascii_lowercase.index(a)] == v for a, v in re.findall(r"([a-z])([01])", opening))


def _agrees(table: Table, name: str, question: str, answer: str) -> bool:
    """Whether the oracle would have answered so if `name` were hidden."""
    about = question.split()[1]
    holds = about == name if question.startswith("say") else _fits(table[name], about)
    return holds == (answer == "yes")


attr_20q = Attr20Q()
