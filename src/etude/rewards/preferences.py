"""Which of two answers is preferred, as a chance, and scores made of comparisons."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from etude.advantages.group import group_min, of_episodes
from etude.core.batches import TokenBatch
from etude.core.draws import children, uniforms
from etude.core.errors import RewardError
from etude.core.fields import Positive, Probability
from etude.core.part import Part
from etude.core.slots import Context, GroupReward
from etude.core.worlds import World
from etude.objectives.pairs import AllPairs
from etude.rewards.judged import BAD_AFTER, View, WholeCompletion
from etude.rewards.judges import Duel, Judge, Opinion
from etude.rewards.pair_judges import SimulatedJudge

if TYPE_CHECKING:
    from etude.core.method import Method


class Oracle(Part, abstract=True):
    """Says how likely one answer to a problem is preferred to another. Need not come from any order of them."""

    slot = "oracle"

    def __call__(self, batch: TokenBatch, first: Tensor, second: Tensor) -> Tensor:
        """P(first > second) [N] of rows with these numbers [N] each; P(second > first) is 1 - P."""
        raise NotImplementedError

    def chances(self, batch: TokenBatch, first: Tensor, second: Tensor, context: Context) -> Tensor:
        """The same, for oracles that need the task or the policy as well."""
        return self(batch, first, second)

    def prefers(self, batch: TokenBatch, first: Tensor, second: Tensor, context: Context) -> Tensor:
        """[N] True where it is for the first, by every vote that it has; a tie is not."""
        return self.chances(batch, first, second, context) > 0.5


class ByScore(Oracle):
    """P(y > y') = sigmoid((r(y) - r(y')) / scale), r what the parts before paid (Bradley and Terry).

    Shapes: numbers of rows [N], scores [B] -> [N].

    >>> from types import SimpleNamespace as Rows
    >>> rows, one, two = Rows(scores=torch.tensor([1.0, 1.0])), torch.tensor([0]), torch.tensor([1])
    >>> ByScore()(rows, one, two).tolist()
    [0.5]
    """

    scale: Positive = 1.0

    def __call__(self, batch: TokenBatch, first: Tensor, second: Tensor) -> Tensor:
        return ((batch.scores[first] - batch.scores[second]) / self.scale).sigmoid()

    def prefers(self, batch: TokenBatch, first: Tensor, second: Tensor, context: Context) -> Tensor:
        return batch.scores[first] > batch.scores[second]


class ByJudge(Oracle):
    """What a judge says of two answers: a chance averaged over both orders; it prefers one where both orders do.

    Two answers of which the judge says nothing are a tie.

    Shapes: numbers of rows [N] -> [N].

    Args:
        judge: who compares.
        sees: what it sees of an answer; nothing to see is an empty answer.
        bad_share: the run stops once more than this share of at least 100 comparisons had no answer; 1 for never.

    Raises: RewardError, naming the problem.

    >>> ByJudge(judge=SimulatedJudge(beta=2.0)).sees.name
    'whole-completion'
    """

    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})  # it reads text

    judge: Judge = SimulatedJudge()
    sees: View = WholeCompletion()
    bad_share: Probability = 0.01

    def initial_state(self) -> dict[str, Any]:
        return {"compared": 0, "failed": 0}

    def chances(self, batch: TokenBatch, first: Tensor, second: Tensor, context: Context) -> Tensor:
        said = self._opinions(batch, first, second, context)
        return batch.scores.new_tensor([0.5 if o is None else o.chance for o in said])

    def prefers(self, batch: TokenBatch, first: Tensor, second: Tensor, context: Context) -> Tensor:
        said = self._opinions(batch, first, second, context)
        return torch.tensor([o is not None and o.unanimous for o in said], device=first.device, dtype=torch.bool)

    def _opinions(self, batch: TokenBatch, first: Tensor, second: Tensor, context: Context) -> list[Opinion | None]:
        whole = [episode.whole for episode in batch.episodes]
        seen = [self.sees.case(episode, context) for episode in whole]
        texts = ["" if case is None else case.given for case in seen]
        pairs = list(zip(first.tolist(), second.tolist()))
        said = self.judge.compare([Duel(whole[i].problem, texts[i], texts[j]) for i, j in pairs], context)
        self.state["compared"] += len(said)
        self.state["failed"] += said.count(None)
        count, bad = self.state["compared"], self.state["failed"]
        if None in said and count >= BAD_AFTER and bad > self.bad_share * count:
            problem = whole[pairs[said.index(None)][0]].problem
            raise RewardError(
                f"{self.judge.name} had no answer in {bad} of {count} comparisons, more than "
                f"bad_share={self.bad_share:g}, the last for two answers to problem {problem.id!r}. {self.judge.why} "
                "Mend the judge, or raise bad_share."
            )
        return said


class Wins(GroupReward):
    """How many of the other answers to its problem an answer wins against: every two are compared once.

    Who wins is drawn with the oracle's chance, with a random number of the two answers' own, so that the same two come
    to the same again in whatever batch. Of two answers the winner has 1 and the loser 0.

    Shapes: [B], counts.

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(scores=torch.tensor([0.0, 90.0, 45.0]), group=torch.zeros(3), draw=torch.tensor([5, 6, 7]))
    >>> Wins().rescore_in(rows, None).tolist()
    [0.0, 2.0, 1.0]
    """

    oracle: Oracle = ByScore()

    def objection(self, method: Method) -> str | None:
        return written_answers(method, "who wins")

    def rescore_in(self, batch: TokenBatch, context: Context) -> Tensor:
        assert batch.draw is not None
        pairs = AllPairs()(torch.zeros_like(batch.scores), batch.group)
        one, two = pairs.better, pairs.worse
        turned = batch.draw[one] > batch.draw[two]  # the same way round in whatever order rows stand
        one, two = torch.where(turned, two, one), torch.where(turned, one, two)
        drawn = uniforms(children(batch.draw[one] ^ batch.draw[two], "preferred"), 0, 1)[0]
        winner = torch.where(drawn < self.oracle.chances(batch, one, two, context), one, two)
        return torch.zeros_like(batch.scores).index_add(0, winner, torch.ones_like(batch.scores[winner]))


class AgainstOneOther(GroupReward):
    """+1 for an answer that is preferred to one other of its problem, else -1; 0 for that one (arXiv:2506.00103).

    Which one is drawn for each problem, all its answers being as likely. A tie is a loss, and where an oracle has
    several votes a win takes all of them. Over the draw, a response of rank k of G has the mean (G + 1 - 2k) / G where
    there is an order without ties, so nothing has to be subtracted.

    Shapes: scores [B] -> [B].

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(scores=torch.tensor([0.5, 90.0, 1.0]), group=torch.zeros(3), draw=torch.tensor([5, 6, 7]))
    >>> rows.once = lambda: None
    >>> AgainstOneOther().rescore_in(rows, None).tolist()  # the last one was drawn
    [-1.0, 1.0, 0.0]
    """

    oracle: Oracle = ByScore()

    def objection(self, method: Method) -> str | None:
        if method.completions == 1:
            return "compares the completions of a problem, and there is one of each: set experience.size to 2 or more."
        return written_answers(method, "whom answers are compared with")

    def rescore_in(self, batch: TokenBatch, context: Context) -> Tensor:
        if (once := batch.once()) is not None:
            first, whose = once
            return self.rescore_in(batch.rows(first), context)[whose]
        drawn = self.drawn(batch)
        _, whose = torch.unique(batch.group, return_inverse=True)
        other = torch.zeros_like(drawn.nonzero()[:, 0])
        other[whose[drawn]] = drawn.nonzero()[:, 0]
        mine = (~drawn).nonzero()[:, 0]
        won = self.oracle.prefers(batch, mine, other[whose[mine]], context)
        return torch.zeros_like(batch.scores).index_copy(0, mine, torch.where(won, 1.0, -1.0).to(batch.scores))

    def drawn(self, batch: TokenBatch) -> Tensor:
        """[B] True on one row of each group, by random numbers of the rows' own."""
        assert batch.draw is not None
        number = uniforms(children(batch.draw, "compared with"), 0, 1)[0]
        return number == of_episodes(group_min, batch, number)


def written_answers(method: Method, what: str) -> str | None:
    """The objection of what draws by the random numbers of samples to a method whose answers are data."""
    experience = method.slots().get("experience")
    if experience is None or experience.samples:
        return None
    return (
        f"draws {what} by the random numbers of samples, and {type(experience).__name__} gives written answers: "
        "set experience=groups, or give the data scores or ranks of their own."
    )
