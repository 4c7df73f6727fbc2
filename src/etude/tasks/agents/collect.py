"""Collect: ask for the value of every key, then say all of them.

The first line names the keys; each turn the player asks for one of them, or says all of them with their values:

    keys c a f
    get f               f4
    get c               c0
    get a               a9
    say c0 a9 f4        right, in whatever order: the game ends, with reward 1

Nobody can know a value without asking, so what was asked has to be remembered until the end. One answer ends the game,
right (reward 1) or wrong (0). Anything else that is said is answered with `invalid`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from string import ascii_lowercase
from typing import Annotated, Any, ClassVar

from etude.core.episodes import Problem, Segment
from etude.core.errors import ConfigError, EnvironmentFault, UnknownNameError
from etude.core.fields import Count, Interval, Probability, WholeNumber
from etude.core.streams import Stream
from etude.core.task import Environment, LanguageTask, StepResult
from etude.tasks.pool import Pool, reserved

REQUEST = "Summary:"
"""How summaries are asked for in the scripts, as `SummaryAt` does by default."""
SAID = re.compile(r"say ([a-z][0-9](?: [a-z][0-9])*)")


class CollectValues(LanguageTask):
    """Values behind calls; 1 for an answer that has them all.

    Args:
        keys: how many values the answer needs.
        fewest: of games that differ in it the least, each number up to `keys` as often; None: all have `keys`.
        max_turns: turns after which the game is truncated.
        summarised: share of the scripts (what supervised methods learn from) that show a game from the middle, behind
            a summary of what is known by then, or up to one.
        seed: which values are drawn. The train/test divide is the same for every seed.

    Splits: 'train' and 'test', which share no list of keys.

    >>> game = CollectValues(keys=2).environment()
    >>> shown = game.reset(Problem("collect/1", "keys c a\\n", "c0 a4", info={"values": {"c": "0", "a": "4"}}), seed=0)
    >>> [game.step(Segment("assistant", said)).segments[0].text for said in ("get a", "get x")]
    ['a4\\n', 'invalid\\n']
    >>> game.step(Segment("assistant", "say a4 c0")).reward
    1.0
    """

    id: ClassVar[str] = "collect"

    keys: Annotated[int, Interval(ge=2, le=12)] = 6
    fewest: Annotated[int, Interval(ge=1, le=12)] | None = None
    max_turns: Count = 12  # type: ignore[misc]  # of each task, where others have one for all
    summarised: Probability = 0.5
    seed: WholeNumber = 0

    def check(self) -> None:
        if self.max_turns <= self.keys:
            raise ConfigError(
                f"CollectValues.max_turns must be more than the {self.keys} keys, or nothing can be answered, got "
                f"{self.max_turns}."
            )
        if self.fewest is not None and self.fewest > self.keys:
            raise ConfigError(f"CollectValues.fewest must be at most its keys, {self.keys}, got {self.fewest}.")

    @property
    def max_tokens(self) -> int:  # type: ignore[override]  # a constant elsewhere, here it follows from the keys
        """Room for an answer, a token each key, value and space."""
        return len("say ") + 3 * self.keys + 1

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in self.splits():
            raise UnknownNameError("split of collect", split, self.splits())
        return Pool(lambda i: self._problem(split, i), 20_000 if split == "train" else 1_000)

    def environment(self) -> Environment:
        return Values(self)

    def answer(self, completion: str) -> str:
        """What was said in the end, in the order of the alphabet."""
        return " ".join(sorted((SAID.findall(completion) or [""])[-1].split()))

    def script(self, problem: Problem, stream: Stream) -> list[Segment]:
        """A game played well, keys asked for in their order; or what one shows between two summaries."""
        return scripted(self, problem, stream)

    def _problem(self, split: str, index: int) -> Problem:
        stream = Stream(self.seed).split("collect", split, index)
        random, count = stream.numpy, self.keys
        if self.fewest is not None:
            count = int(stream.split("keys").numpy.integers(self.fewest, self.keys + 1))
        while True:
            names = [ascii_lowercase[k] for k in random.permutation(26)[:count]]
            prompt = f"keys {' '.join(names)}\n"
            if reserved(prompt) == (split == "test"):
                break
        values = {name: str(v) for name, v in zip(names, random.integers(10, size=count))}
        return Problem(f"collect/{split}/{index}", prompt, summary(names, values), f"keys{count}", {"values": values})


class Values:
    """One game. `info` of a step: `success` (all values said), `valid` (what was said was understood)."""

    def __init__(self, task: CollectValues) -> None:
        self.task, self.turn, self.over = task, 0, True
        self.values: Mapping[str, str] = {}
        self.wanted: list[str] = []

    def reset(self, problem: Problem, seed: int) -> list[Segment]:
        self.values, self.wanted = problem.info["values"], sorted(str(problem.answer).split())
        self.turn, self.over = 0, False
        return [Segment("user", str(problem.prompt))]

    def step(self, segment: Segment) -> StepResult:
        """Answer a call, or judge an answer. Raises EnvironmentFault when the game is over."""
        if self.over:
            raise EnvironmentFault("This game of collect is over; call reset() to start another.")
        self.turn += 1
        text = segment.text.strip()
        said = SAID.fullmatch(text)
        right, late = said is not None and sorted(said[1].split()) == self.wanted, self.turn >= self.task.max_turns
        reply = "right" if right else "wrong" if said else self.reply(text)
        self.over = said is not None or late
        info = {"success": right, "valid": reply != "invalid"}
        return StepResult([Segment("user", f"{reply}\n")], float(right), said is not None, late and not said, info)

    def reply(self, call: str) -> str:
        """The value of a key behind it, or 'invalid'."""
        asked = re.fullmatch(r"get ([a-z])", call)
        return f"{asked[1]}{self.values[asked[1]]}" if asked and asked[1] in self.values else "invalid"

    def snapshot(self) -> dict[str, Any]:
        """Where the game stands, as JSON values."""
        return {"values": dict(self.values), "wanted": self.wanted, "turn": self.turn, "over": self.over}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a snapshot."""
        self.values, self.wanted = state["values"], state["wanted"]
        self.turn, self.over = state["turn"], state["over"]

    def tools(self) -> list[dict[str, Any]]:
        """What can be said."""
        return [
            {"name": "get", "example": "get a", "arguments": {"key": list(ascii_lowercase)}},
            {"name": "say", "example": "say c0 a9", "arguments": {"values": "keys with values"}},
        ]


def scripted(task: CollectValues, problem: Problem, stream: Stream) -> list[Segment]:
    """A game played well; in a share `task.summarised` of the scripts one view of a game with a summary."""
    game, random = task.environment(), stream.numpy
    segments, values = game.reset(problem, 0), problem.info["values"]
    names = list(values)
    parts, known = random.random() < task.summarised, 0
    if parts:
        known, end = sorted(random.integers(0, len(names) + 1, size=2).tolist())
    else:
        end = len(names)
    if known:
        segments.append(Segment("user", summary(names[:known], values) + "\n"))
    for name in names[known:end]:
        result = game.step(Segment("assistant", f"get {name}"))
        segments += [Segment("assistant", f"get {name}"), *result.segments]
    if parts and end < len(names):
        return [*segments, Segment("user", REQUEST), Segment("assistant", summary(names[:end], values))]
    return [*segments, Segment("assistant", f"say {problem.answer}", reward=1.0)]


def summary(names: Sequence[str], values: Mapping[str, str]) -> str:
    """What is known: names with their values.

    >>> summary(["f", "c"], {"c": "0", "a": "9", "f": "4"})
    'f4 c0'
    """
    return " ".join(name + values[name] for name in names)


collect = CollectValues()
