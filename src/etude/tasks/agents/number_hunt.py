"""Number hunt: find a hidden number in a few guesses, each answered by where to look next, not always truly.

Thirty-two numbers are called by one character each, A (the smallest) to Z and a to f. One is hidden:

    hunt>               what is asked
    K                   a guess
    +                   the hidden number is larger ('-': smaller; '=': it is this one); one answer in ten is false
    R                   and so on, five guesses in all

What counts is how near the last guess is; nothing is paid before. Anything else that is said is answered with '?'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import ascii_letters
from typing import Any, ClassVar

from etude.core.episodes import Problem, Segment
from etude.core.errors import EnvironmentFault, UnknownNameError
from etude.core.fields import Count, Probability, WholeNumber
from etude.core.streams import Stream
from etude.core.task import Environment, LanguageTask, StepResult
from etude.tasks.pool import Pool

NUMBERS = ascii_letters[26:] + ascii_letters[:6]
"""The names of the numbers, in their order."""
HINTS = "+-="


class NumberHunt(LanguageTask):
    """Guess a hidden number: the reward is 1 - |last guess - hidden| / 31, at the end; 0 if that was no number.

    Args:
        max_turns: guesses.
        noise: chance of each answer to be one of the other two.
        size: problems of the split 'train'.
        seed: which numbers are hidden, and how the writer of dialogues guesses.

    Splits: 'train' and 'test', which are drawn apart; there is one prompt, so whoever plays well has to listen.

    >>> game = NumberHunt(noise=0.0, max_turns=2).environment()
    >>> shown = game.reset(Problem("number-hunt/1", "hunt>\\n", "C"), seed=0)
    >>> [(r.segments[0].text if r.segments else "", round(r.reward, 3)) for r in map(game.step, map(said, "AD"))]
    [('+\\n', 0.0), ('', 0.968)]
    """

    id: ClassVar[str] = "number-hunt"
    max_tokens: ClassVar[int] = 2

    max_turns: Count = 5  # type: ignore[misc]  # of each task, where others have one for all
    noise: Probability = 0.1
    size: Count = 4000
    seed: WholeNumber = 0

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in self.splits():
            raise UnknownNameError("split of number-hunt", split, self.splits())
        return Pool(lambda i: self._problem(split, i), self.size if split == "train" else 1_000)

    def _problem(self, split: str, index: int) -> Problem:
        hidden = NUMBERS[int(Stream(self.seed).split("number-hunt", split, index).numpy.integers(len(NUMBERS)))]
        return Problem(f"number-hunt/{split}/{index}", "hunt>\n", hidden)

    def environment(self) -> Environment:
        return Hunt(self)

    def script(self, problem: Problem, stream: Stream) -> list[Segment]:
        """A dialogue with random guesses, which listens to nothing: what supervised methods learn from."""
        random, game = stream.split("guesses").numpy, Hunt(self)
        segments = game.reset(problem, int(random.integers(1 << 31)))
        for guess in random.integers(len(NUMBERS), size=self.max_turns):
            segments.append(said(NUMBERS[int(guess)]))
            result = game.step(segments[-1])
            segments += result.segments
        return segments

    def answer(self, completion: str) -> str:
        """The last guess."""
        return completion[-1:]


def said(text: str) -> Segment:
    """A turn of the player."""
    return Segment("assistant", text)


class Hunt:
    """One game. `info` of a step: `success` (the last guess is the hidden number), `valid` (it was a number)."""

    def __init__(self, task: NumberHunt) -> None:
        self.task, self.hidden, self.turn, self.seed = task, 0, task.max_turns, 0

    def reset(self, problem: Problem, seed: int) -> list[Segment]:
        self.hidden, self.turn, self.seed = NUMBERS.index(str(problem.answer)), 0, seed
        return [Segment("user", str(problem.prompt))]

    def step(self, segment: Segment) -> StepResult:
        """Answer a guess. Raises EnvironmentFault when the game is over."""
        if self.turn >= self.task.max_turns:
            raise EnvironmentFault("This game of number-hunt is over; call reset() to start another.")
        self.turn += 1
        text = segment.text.strip()
        guess = NUMBERS.index(text) if len(text) == 1 and text in NUMBERS else None
        info = {"success": guess == self.hidden, "valid": guess is not None}
        if self.turn == self.task.max_turns:
            near = 0.0 if guess is None else 1 - abs(guess - self.hidden) / (len(NUMBERS) - 1)
            return StepResult([], near, True, False, info)
        hint = "?" if guess is None else self.hint(guess)
        return StepResult([Segment("user", f"{hint}\n")], 0.0, False, False, info)

    def hint(self, guess: int) -> str:
        """Where the hidden number is, or, by chance, one of the other two things that there are to say."""
        true = HINTS[(guess > self.hidden) + 2 * (guess == self.hidden)]
        random = Stream(self.seed).split("number-hunt", self.turn).numpy
        if random.random() >= self.task.noise:
            return true
        return str(random.choice([h for h in HINTS if h != true]))

    def snapshot(self) -> dict[str, Any]:
        """Where the game stands, as JSON values."""
        return {"hidden": self.hidden, "turn": self.turn, "seed": self.seed}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a snapshot."""
        self.hidden, self.turn, self.seed = state["hidden"], state["turn"], state["seed"]

    def tools(self) -> list[dict[str, Any]]:
        """What can be said."""
        return [{"name": "guess", "example": NUMBERS[0], "arguments": {"number": list(NUMBERS)}}]


number_hunt = NumberHunt()
