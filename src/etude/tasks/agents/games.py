"""Games of one utterance per turn: what they have in common, so that each is only its problems, rules and players.

All that a game knows is in `state`, plain JSON values, so every game can be branched and gone back to. Words that its
tokenizer has a token for begin with a space; how what is said is spaced changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

from numpy.random import Generator

from etude.core.episodes import Problem, Segment, StopReason
from etude.core.errors import EnvironmentFault, UnknownNameError
from etude.core.fields import Count, Probability, WholeNumber
from etude.core.streams import Stream
from etude.core.task import LanguageTask, StepResult
from etude.tasks.pool import Pool, reserved


class Posed(NamedTuple):
    """What a problem is made of; `info` are plain values."""

    prompt: str
    answer: str | None
    level: str
    info: Mapping[str, Any]


class Heard(NamedTuple):
    """What comes of an utterance.

    Args:
        reply: what the player is told, without the line break.
        reward: of the turn.
        ended: whether the outcome is there.
        success: whether it is a good one.
        valid: whether the utterance was understood and could be done.
        more: other numbers for the episode's `info`.
    """

    reply: str
    reward: float = 0.0
    ended: bool = False
    success: bool = False
    valid: bool = True
    more: Mapping[str, Any] = {}


class TurnTask(LanguageTask, abstract=True):
    """A game in text with one utterance per turn, which its environment, a `Game`, knows how to play, well or badly.

    Args:
        max_turns: turns after which the game is truncated.
        slips: share of the turns of scripts, which supervised methods learn from, in which anything is said.
        seed: which problems are drawn. The train/test divide is the same for every seed.
    """

    max_turns: Count = 12  # type: ignore[misc]  # of each task, where others have one for all
    slips: Probability = 0.0
    seed: WholeNumber = 0

    def posed(self, random: Generator) -> Posed | None:
        """A problem; None for one that is not to be, so that another one is drawn."""
        raise NotImplementedError

    def environment(self) -> Game:
        raise NotImplementedError

    def divided(self, posed: Posed) -> str:
        """The text that decides between 'train' and 'test'."""
        return posed.prompt

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in self.splits():
            raise UnknownNameError(f"split of {self.id}", split, self.splits())
        return Pool(lambda i: self._problem(split, i), 20_000 if split == "train" else 1_000)

    def _problem(self, split: str, index: int) -> Problem:
        random = Stream(self.seed).split(self.id, split, index).numpy
        while (posed := self.posed(random)) is None or reserved(self.divided(posed)) != (split == "test"):
            pass
        return Problem(f"{self.id}/{split}/{index}", *posed)

    def answer(self, completion: str) -> str:
        """All that was said."""
        return " ".join(completion.split())

    def script(self, problem: Problem, stream: Stream) -> list[Segment]:
        """A whole game, with rewards: what supervised methods learn from."""
        game, random = self.environment(), stream.numpy
        segments, over = game.reset(problem, 0), False
        while not over:
            text = game.anything(random) if random.random() < self.slips else game.best(random)
            result = game.step(Segment("assistant", text))
            over = result.terminated or result.truncated
            shown = [] if result.terminated else result.segments  # a truncated one could have gone on
            segments += [Segment("assistant", text, reward=result.reward), *shown]
        if result.truncated:
            segments[-1].info["stop"] = StopReason.TRUNCATED
        return segments


class Game:
    """One game. `info` of a step: `success`, `valid` (what was said was understood), and what the game adds."""

    def __init__(self, task: TurnTask) -> None:
        self.game, self.turn, self.over = task, 0, True
        self.state: dict[str, Any] = {}

    def begun(self, problem: Problem) -> dict[str, Any]:
        """The state at the beginning, JSON values."""
        raise NotImplementedError

    def said(self, words: Sequence[str]) -> Heard:
        """What comes of an utterance."""
        raise NotImplementedError

    def best(self, random: Generator) -> str:
        """What a good player would say now."""
        raise NotImplementedError

    def anything(self, random: Generator) -> str:
        """What somebody would say who does not think."""
        raise NotImplementedError

    def reset(self, problem: Problem, seed: int) -> list[Segment]:
        self.state, self.turn, self.over = self.begun(problem), 0, False
        return [Segment("user", str(problem.prompt))]

    def step(self, segment: Segment) -> StepResult:
        """Answer an utterance. Raises EnvironmentFault when the game is over."""
        if self.over:
            raise EnvironmentFault(f"This game of {self.game.id} is over; call reset() to start another.")
        self.turn += 1
        heard = self.said(segment.text.split())
        late = not heard.ended and self.turn >= self.game.max_turns
        self.over = heard.ended or late
        info = {"success": heard.success, "valid": heard.valid, **heard.more}
        return StepResult([Segment("user", f"{heard.reply}\n")], heard.reward, heard.ended, late, info)

    def snapshot(self) -> dict[str, Any]:
        """Where the game stands, as JSON values."""
        return deepcopy({"state": self.state, "turn": self.turn, "over": self.over})

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a snapshot."""
        kept = deepcopy(dict(state))
        self.state, self.turn, self.over = kept["state"], kept["turn"], kept["over"]


def spaced(*words: object) -> str:
    """Words as they are written: a space before each.

    >>> spaced("go", "hall", 3)
    ' go hall 3'
    """
    return "".join(f" {word}" for word in words)


def one_of(random: Generator, choices: Sequence[Any]) -> Any:
    """One of them, each as likely as the others."""
    return choices[int(random.integers(len(choices)))]


def some_of(random: Generator, choices: Sequence[Any], count: int) -> list[Any]:
    """So many of them, none twice, in random order."""
    return [choices[k] for k in random.permutation(len(choices))[:count]]
