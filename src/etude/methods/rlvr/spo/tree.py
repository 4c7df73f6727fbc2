"""Trees of completions: every node a row, its beginning as context and what it adds as target."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from etude.advantages.segments import SampledValues, SegmentAdvantage
from etude.core.batches import TokenBatch
from etude.core.episodes import Episode, Problem, StopReason
from etude.core.fields import Count, NonNegative
from etude.core.kept import Kept
from etude.core.slots import Context, Filter, GroupReward
from etude.core.task import LanguageTask, Task
from etude.experience.groups import Groups
from etude.experience.rollout import Start, fresh, rollout

if TYPE_CHECKING:
    from etude.core.method import Method

SAME = 1e-6
"""Values up to which a node and the one above it are worth the same."""
WAITS = "waits"
"""Of an episode: it is learned from in a later step."""


class Tree(Groups):
    """A tree of completions of each problem: `size` nodes below the prompt, `deeper[0]` below each of these, and so on.

    A node adds up to `cap` tokens to the text above it, one of the last level all that is left. What ends is a leaf,
    worth what it is paid; a node that others go on from is worth the mean of these (`batch.sampled_values`: what the
    node above a row is worth, before its first token; the row's score is what it is worth itself). Equal texts are read
    once. Single-turn tasks.

    Of the nodes of a problem that are worth something else than the text before them, `at_most` are learned from in a
    step, whichever by their random numbers; the others in one of the next `steps` steps, again at most so many of a
    problem, with the log-probabilities and the values of when they were sampled.

    Args:
        size: nodes below the prompt.
        deeper: nodes below each node that has not ended, level by level.
        cap: tokens of a node.
        at_most: None: all at once.
        steps: what has waited longer is lost.

    Shapes: a row for each node; what waits is said by scores [B] and sampled_values [B, T].

    >>> part = Tree(size=4, deeper=(3, 2), cap=8)
    >>> part.rows_per_problem == 4 + 4 * 3 + 4 * 3 * 2
    True
    """

    probes: ClassVar[bool] = True
    sees_unfinished: ClassVar[bool] = True
    size: Count = 6
    deeper: tuple[Count, ...] = (6, 6)
    cap: Count = 30
    at_most: Count | None = 32
    steps: Count = 8

    @property
    def rows_per_problem(self) -> int:
        rows = level = self.size
        for children in self.deeper:
            level *= children
            rows += level
        return rows

    def objection(self, method: Method) -> str | None:
        slots = method.slots()
        if not any(isinstance(part, SampledValues) for part in method.parts().values()):
            return "has rows that are parts of completions, with values: set advantages=segment-advantage."
        for part in slots.get("rewards", ()):
            if isinstance(part, GroupReward):
                return f"has leaves of several depths, and {type(part).__name__} compares completions: leave it out."
        for slot in ("second_look", "critic"):
            if slots.get(slot) is not None:
                return f"has rows that are parts of completions, of which {slot} knows nothing: leave it out."
        filters = slots.get("filters", ())
        others = [part for part in filters if not isinstance(part, NodesWithCredit)]
        if others:
            return f"has rows that are parts of completions, and {type(others[0]).__name__} compares whole ones."
        if self.at_most is None:
            return super().objection(method)
        if not filters:
            return (
                "keeps nodes for later steps, and nothing leaves them out of this one: set filters=nodes-with-credit."
            )
        objective = slots.get("objective")
        if objective is not None and objective.fresh_rows:
            return (
                f"learns from nodes of earlier steps, and {type(objective).__name__} is right on rows of the present "
                "policy only: set experience.at_most=none, or choose objective=clipped-surrogate."
            )
        return super().objection(method)

    def lacks(self, task: Task) -> str | None:
        if isinstance(task, LanguageTask) and task.max_turns > 1:
            return f"Tree cuts a single turn into pieces, and task {task.id!r} has several: choose experience=forks."
        return super().lacks(task)

    def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        limit, found = self.max_tokens or context.max_tokens, list[Episode]()
        starts = fresh(problems, self.size, context.stream)
        for level in range(len(self.deeper) + 1):
            left = limit - level * self.cap
            ends = level == len(self.deeper) or left <= self.cap
            sampling = dataclasses.replace(self.sampling(context), max_tokens=left if ends else self.cap)
            nodes = rollout(starts, context, sampling)
            starts = []
            for number, episode in enumerate(nodes, len(found)):
                episode.info |= {"node": number, "above": -1 if episode.parent is None else episode.parent}
                if not ends and episode.stop is StopReason.MAX_TOKENS:
                    starts += self._below(number, episode, level)
            found += nodes
            if not starts:
                break
        return found + self._waited(len(problems), context)

    def _below(self, number: int, episode: Episode, level: int) -> list[Start]:
        """The starts of the nodes below one that goes on, which has no reward of its own."""
        assert episode.draw is not None
        said = episode.segments[-1]
        episode.stop, said.reward = StopReason.PAUSED, 0.0  # the environment was shown a part, which is no answer
        at = Start(episode.problem, episode.group, episode.draw, (said,), True, seed=episode.seed, parent=number)
        return [at._replace(draw=episode.draw.child("fork", level, k)) for k in range(self.deeper[level])]

    # What waits for a later step

    def initial_state(self) -> dict[str, Any]:
        return Kept.empty()

    @property
    def kept(self) -> Kept:
        """Nodes that wait, as they stand in this part's state."""
        return Kept(self.state, age=self.steps)

    def before_update(self, batch: TokenBatch) -> None:
        if self.at_most is None:
            return
        self.kept.step()
        credit, again = with_credit(batch), Counter(e.problem.id for e in batch.episodes if "node" not in e.info)
        for group in dict.fromkeys(batch.group.tolist()):
            own = [batch.episodes[i] for i in ((batch.group == group) & credit).nonzero()[:, 0].tolist()]
            new = sorted((e for e in own if "node" in e.info), key=_lot)
            waiting = new[max(0, self.at_most - again[new[0].problem.id]) :] if new else []
            for episode in waiting:
                episode.info |= {WAITS: True, "facts": episode.info["worth"]}
            self.kept.put(waiting)

    def _waited(self, groups: int, context: Context) -> list[Episode]:
        """Nodes of earlier steps, those of a problem as a group of its own, after so many others."""
        found, numbers = self.kept.take_each(self.at_most or 0), dict[str, int]()
        for number, episode in enumerate(found):
            episode.group = numbers.setdefault(episode.problem.id, groups + len(numbers))
            episode.draw, episode.stop = context.stream.draw("waited", number), StopReason.PAUSED
        return found


def _lot(episode: Episode) -> int:
    """A number that says nothing of what the episode is worth."""
    assert episode.draw is not None
    return episode.draw.key


class NodesWithCredit(Filter):
    """1 on rows that are worth something else than the text they go on from, unless they wait; 0 on the others.

    Shapes: scores [B], sampled_values [B, T] -> [B].

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(sampled_values=torch.tensor([[0.5, torch.nan], [torch.nan, 1.0]]), scores=torch.ones(2))
    >>> rows.episodes = [Rows(info={}), Rows(info={})]
    >>> NodesWithCredit().weigh(rows).tolist()
    [1.0, 0.0]
    """

    def objection(self, method: Method) -> str | None:
        if isinstance(method.slots().get("experience"), Tree):
            return None
        return "asks which nodes of a tree have values, and nothing makes one: choose experience=tree."

    def weigh(self, batch: TokenBatch) -> Tensor:
        waits = torch.tensor([WAITS in e.info for e in batch.episodes], device=batch.scores.device)
        return (with_credit(batch) & ~waits).to(batch.scores.dtype)


def with_credit(batch: TokenBatch) -> Tensor:
    """[B] True on rows that are worth something else than the text they go on from."""
    assert batch.sampled_values is not None
    return ((batch.scores[:, None] - batch.sampled_values).abs() > SAME).any(1)  # nan differs from nothing


class OverSiblings(SegmentAdvantage):
    """(V(node) - V(the one above)) / the population deviation of those below the same, as GRPO's (arXiv:2505.23564).

    0 where all of these are worth the same. Shapes: rewards, sampled_values [B, T] -> [B, T].

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(rewards=torch.tensor([[1.0]]), sampled_values=torch.tensor([[0.25]]), scores=torch.tensor([1.0]))
    >>> rows.action_mask, rows.sampled = torch.ones(1, 1).bool(), torch.ones(1).bool()
    >>> rows.episodes = [Rows(info={"worth": {"spread": 0.5}})]
    >>> OverSiblings(epsilon=0.0)(rows).tolist()
    [[1.5]]
    """

    epsilon: NonNegative = 1e-6

    def objection(self, method: Method) -> str | None:
        if not isinstance(method.slots().get("experience"), Tree):
            return "asks how much the nodes below another differ, and nothing makes any: choose experience=tree."
        return super().objection(method)

    def __call__(self, batch: TokenBatch) -> Tensor:
        noted = [e.info.get("facts") or e.info.get("worth") or {"spread": 0.0} for e in batch.episodes]
        spread = batch.scores.new_tensor([worth["spread"] for worth in noted])[:, None]
        return torch.where(spread > 0, super().__call__(batch) / (spread + self.epsilon).clamp(min=1e-12), 0.0)
