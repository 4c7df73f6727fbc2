"""Trees of completions: every node a row, its beginning as context and what it adds as target."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from etude.advantages.segments import SampledValues
from etude.core.batches import TokenBatch
from etude.core.episodes import Episode, Problem, StopReason
from etude.core.fields import Count
from etude.core.slots import Context, Filter, GroupReward
from etude.core.task import LanguageTask, Task
from etude.experience.groups import Groups
from etude.experience.rollout import Start, fresh, rollout

if TYPE_CHECKING:
    from etude.core.method import Method

SAME = 1e-6
"""Values up to which a node and the one above it are worth the same."""


class Tree(Groups):
    """A tree of completions of each problem: `size` nodes below the prompt, `deeper[0]` below each of these, and so on.

    A node adds up to `cap` tokens to the text above it, one of the last level all that is left. What ends is a leaf,
    worth what it is paid; a node that others go on from is worth the mean of these (`batch.sampled_values`: what the
    node above a row is worth, before its first token; the row's score is what it is worth itself). Equal texts are read
    once. Single-turn tasks.

    Args:
        size: nodes below the prompt.
        deeper: nodes below each node that has not ended, level by level.
        cap: tokens of a node.

    >>> part = Tree(size=4, deeper=(3, 2), cap=8)
    >>> part.rows_per_problem == 4 + 4 * 3 + 4 * 3 * 2
    True
    """

    probes: ClassVar[bool] = True
    size: Count = 6
    deeper: tuple[Count, ...] = (6, 6)
    cap: Count = 30

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
        others = [part for part in slots.get("filters", ()) if not isinstance(part, NodesWithCredit)]
        if others:
            return f"has rows that are parts of completions, and {type(others[0]).__name__} compares whole ones."
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
        return found

    def _below(self, number: int, episode: Episode, level: int) -> list[Start]:
        """The starts of the nodes below one that goes on, which has no reward of its own."""
        assert episode.draw is not None
        said = episode.segments[-1]
        episode.stop, said.reward = StopReason.PAUSED, 0.0  # the environment was shown a part, which is no answer
        at = Start(episode.problem, episode.group, episode.draw, (said,), True, seed=episode.seed, parent=number)
        return [at._replace(draw=episode.draw.child("fork", level, k)) for k in range(self.deeper[level])]


class NodesWithCredit(Filter):
    """1 on rows that are worth something else than the text they go on from, 0 on the others.

    Shapes: scores [B], sampled_values [B, T] -> [B].

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(sampled_values=torch.tensor([[0.5, torch.nan], [torch.nan, 1.0]]), scores=torch.ones(2))
    >>> NodesWithCredit().weigh(rows).tolist()
    [1.0, 0.0]
    """

    def objection(self, method: Method) -> str | None:
        if isinstance(method.slots().get("experience"), Tree):
            return None
        return "asks which nodes of a tree have values, and nothing makes one: choose experience=tree."

    def weigh(self, batch: TokenBatch) -> Tensor:
        assert batch.sampled_values is not None
        differs = (batch.scores[:, None] - batch.sampled_values).abs() > SAME  # nan differs from nothing
        return differs.any(1).to(batch.scores.dtype)
