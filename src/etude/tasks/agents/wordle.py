"""Wordle: find a hidden word of a list in six guesses; each is answered with a mark for each letter.

     hint luka --?-                 a first guess, which is given: '+' right, '?' elsewhere in the word, '-' not there
    keto                            +-++
    kito                            there

The words are made up, the same in every game, and never shown: the player has to know them. A guess that is no word of
the list is answered with `no`, and costs a turn. The right one ends the game.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any, ClassVar

from numpy.random import Generator

from etude.core.episodes import Problem
from etude.core.fields import Count, Interval, NonNegative, Probability
from etude.core.streams import Stream
from etude.policies.agent_words import MARKS
from etude.tasks.agents.games import Game, Heard, Posed, TurnTask, one_of, some_of, spaced

CONSONANTS, VOWELS = "bdfghklmnprst", "aeiou"


class Wordle(TurnTask):
    """Guess a word: 1 for the right one, and `-cost` for every other turn.

    Args:
        words: how many there are in the list.
        letters: of each word.
        attention: share of the guesses of good players that agree with all that was answered; others are any word.
        cost: what a turn takes that does not find the word.
        max_turns, slips, seed: as of `TurnTask`; the seed also draws the list.

    Splits: 'train' and 'test', which share no given guess with its marks.

    >>> from etude.core.episodes import Segment
    >>> game = wordle.environment()
    >>> shown = game.reset(Problem("1", " hint luka ---?\\n", "hado", info={"given": "luka"}), 0)
    >>> [(r.segments[0].text, r.reward) for r in (game.step(Segment("assistant", s)) for s in ("xxxx", "hado"))]
    [(' no\\n', 0.0), (' there\\n', 1.0)]
    """

    id: ClassVar[str] = "wordle"

    words: Annotated[int, Interval(ge=8, le=400)] = 60
    letters: Annotated[int, Interval(ge=3, le=6)] = 4
    attention: Probability = 1.0
    cost: NonNegative = 0.0
    max_turns: Count = 6  # type: ignore[misc]

    @property
    def max_tokens(self) -> int:  # type: ignore[override]  # a constant elsewhere, here it follows from the letters
        """A word and its end."""
        return self.letters + 1

    @property
    def list(self) -> tuple[str, ...]:
        """The words, in the order of the alphabet."""
        return _list(self.words, self.letters, self.seed)

    def posed(self, random: Generator) -> Posed:
        word, given = some_of(random, self.list, 2)
        return Posed(f"{spaced('hint', given, marks(word, given))}\n", word, f"words{self.words}", {"given": given})

    def environment(self) -> Hidden:
        return Hidden(self)


@cache
def _list(words: int, letters: int, seed: int) -> tuple[str, ...]:
    random, found = Stream(seed).split("wordle", "list", letters).numpy, set[str]()
    while len(found) < words:
        found.add("".join(one_of(random, (CONSONANTS, VOWELS)[k % 2]) for k in range(letters)))
    return tuple(sorted(found))


def marks(word: str, guess: str) -> str:
    """How right each letter of a guess is. A letter is marked as often as the word has it, right ones first.

    >>> marks("lemon", "melon"), marks("lemon", "nanny"), marks("lemon", "lemon")
    ('?+?++', '?----', '+++++')
    """
    left = Counter(w for w, g in zip(word, guess) if w != g)
    found = []
    for w, g in zip(word, guess):
        if w == g:
            found.append(MARKS[0])
        else:
            found.append(MARKS[1] if left[g] > 0 else MARKS[2])
            left[g] -= 1
    return "".join(found)


class Hidden(Game):
    """One game. `state`: the hidden `word`, and each guess with its marks."""

    def __init__(self, task: Wordle) -> None:
        super().__init__(task)
        self.task = task

    def begun(self, problem: Problem) -> dict[str, Any]:
        word, given = str(problem.answer), problem.info.get("given")
        return {"word": word, "told": [[given, marks(word, given)]] if given else []}

    def said(self, words: Sequence[str]) -> Heard:
        guess = "".join(words)
        if guess not in self.task.list:
            return Heard(spaced("no"), 0.0 - self.task.cost, valid=False)
        if guess == self.state["word"]:
            return Heard(spaced("there"), 1.0, True, True)
        found = marks(self.state["word"], guess)
        self.state["told"].append([guess, found])
        return Heard(found, 0.0 - self.task.cost)

    def best(self, random: Generator) -> str:
        """A word that could be the hidden one; at times any."""
        if random.random() >= self.task.attention:
            return self.anything(random)
        possible = [w for w in self.task.list if all(marks(w, g) == m for g, m in self.state["told"])]
        return str(one_of(random, possible))

    def anything(self, random: Generator) -> str:
        return str(one_of(random, self.task.list))

    def tools(self) -> list[dict[str, Any]]:
        """What can be said."""
        return [{"name": "guess", "example": self.task.list[0], "arguments": {"word": list(self.task.list)}}]


wordle = Wordle()
