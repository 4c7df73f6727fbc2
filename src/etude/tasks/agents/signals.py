"""Signals: one player knows a letter, the other has to find it, and what they say to each other means nothing yet.

    the sender sees     tell c:        and says    xq
    the receiver sees   hear xq:       and says    c

It is the signalling game of Lewis (Convention, 1969): a code that both keep to is as good as any other. The receiver is
paid 1 for the right letter; the sender, too, less a cost for each character. The letter itself cannot be sent: it is
blotted out. With several rounds the sender is told of a wrong guess, and sends again:

    the sender sees     no b           and says    xx
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import ascii_lowercase
from typing import Annotated, Any, ClassVar

from etude.core.episodes import Problem, Segment
from etude.core.errors import EnvironmentFault, UnknownNameError
from etude.core.fields import Count, Interval, NonNegative, WholeNumber
from etude.core.streams import Stream
from etude.core.task import Environment, LanguageTask, StepResult
from etude.tasks.pool import Pool

SENDER, RECEIVER = "sender", "receiver"
BLOT = "."


class Signals(LanguageTask):
    """A letter is told by one player to another, in a code that they have to find.

    Args:
        letters: how many letters there are to tell.
        rounds: tries of the receiver.
        cost: of each character that is sent, to the sender.
        seed: which letters are told.

    Splits: 'train' and 'test', which are drawn apart.

    >>> game = Signals(cost=0.1).environment()
    >>> [s.text for s in game.reset(Problem("signals/1", "", "c"), seed=0)]
    ['tell c:']
    >>> sent = game.step(Segment("assistant", "xc"))
    >>> sent.player, sent.segments[0].text
    ('receiver', 'hear x.:')
    >>> found = game.step(Segment("assistant", "c"))
    >>> found.reward, found.pays, found.terminated
    (1.0, {'sender': 0.8}, True)
    """

    id: ClassVar[str] = "signals"
    max_tokens: ClassVar[int] = 2
    players: ClassVar[tuple[str, ...]] = (SENDER, RECEIVER)

    letters: Annotated[int, Interval(ge=2, le=26)] = 4
    rounds: Count = 1
    cost: NonNegative = 0.05
    seed: WholeNumber = 0

    @property
    def max_turns(self) -> int:  # type: ignore[override]  # a constant elsewhere, here it follows from the fields
        """A turn of each player in each round."""
        return 2 * self.rounds

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in self.splits():
            raise UnknownNameError("split of signals", split, self.splits())
        return Pool(lambda i: self._problem(split, i), 20_000 if split == "train" else 1_000)

    def _problem(self, split: str, index: int) -> Problem:
        letter = ascii_lowercase[int(Stream(self.seed).split("signals", split, index).numpy.integers(self.letters))]
        return Problem(f"signals/{split}/{index}", f"tell {letter}:", letter)

    def environment(self) -> Environment:
        return Telling(self)


class Telling:
    """One game. `info` of a step: `success` (the receiver found the letter)."""

    def __init__(self, task: Signals) -> None:
        self.task, self.letter, self.turn, self.sent, self.over = task, "", 0, 0, True

    def reset(self, problem: Problem, seed: int) -> list[Segment]:
        self.letter, self.turn, self.sent, self.over = str(problem.answer), 0, 0, False
        return [Segment("user", f"tell {self.letter}:")]

    def step(self, segment: Segment) -> StepResult:
        """Carry a signal over, or say whether a letter is the right one. Raises EnvironmentFault after the end."""
        if self.over:
            raise EnvironmentFault("This game of signals is over; call reset() to start another.")
        self.turn += 1
        text = segment.text.strip()
        if self.turn % 2:
            self.sent += len(text)
            heard = text.replace(self.letter, BLOT)
            return StepResult([Segment("user", f"hear {heard}:")], player=RECEIVER)
        right = text == self.letter
        self.over = right or self.turn == self.task.max_turns
        if not self.over:
            return StepResult([Segment("user", f"\nno {text}\n")], player=SENDER)
        paid = {SENDER: float(right) - self.task.cost * self.sent}
        return StepResult([], float(right), terminated=True, info={"success": right}, pays=paid)

    def snapshot(self) -> dict[str, Any]:
        """Where the game stands, as JSON values."""
        return {"letter": self.letter, "turn": self.turn, "sent": self.sent, "over": self.over}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a snapshot."""
        self.letter, self.turn, self.sent, self.over = state["letter"], state["turn"], state["sent"], state["over"]


signals = Signals()
