"""Search as experience: a step learns from what a search came to on its way (arXiv:2412.14135, sections 5 and 6)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.episodes import Episode, Problem, StopReason
from etude.core.fields import Count, Probability
from etude.core.slots import Context, Filter, TokenAdvantages, TokenReward
from etude.core.task import LanguageTask, Task
from etude.experience.groups import Groups
from etude.planners.guides import Verifier
from etude.planners.learnable import row_of
from etude.planners.search import BestOf, Search, below
from etude.planners.trees import Node, Trees

if TYPE_CHECKING:
    from etude.core.method import Method

CHOSEN, VISITS, WORTH = "chosen", "visits", "worth"
"""Of an episode: whether the search settled on it, how often it came to it, and what its guide said of each step."""


class GroupsBySearch(Groups):
    """The whole answers that a search came to, as a group: what it settled on, and what it said on its way there.

    An answer that stood at the end of a tree counts as often as the search came by (`info["visits"]`), one that was
    sampled at once, a guide's look ahead too, once. `info["chosen"]` marks the answer of the search, `info["worth"]`
    has what the guide said of the answer after each of its steps, None where it was not asked. All tokens are the
    policy's own, with the log-probabilities that they were sampled with; which answers there are is the search's doing.
    With `best-of` these are the groups of `groups`, number by number. Trees grow in the process that trains.

    Args:
        search: how answers are looked for; `experience.search=beam`, `experience.search.guide=lookahead`.
        size: answers of a problem at most: that which was chosen, and the first of the others.

    Shapes: an episode of l steps has `info["worth"]` [l], and each of its rows `step` [B, T].

    >>> GroupsBySearch(search=BestOf(samples=4)).search.rows
    4
    """

    search: Search = BestOf(samples=8, guide=Verifier())
    size: Count = 8

    def objection(self, method: Method) -> str | None:
        if method.slots().get("second_look") is not None:
            return "searches for answers by itself, and has no steps of those that second_look adds: leave it out."
        return super().objection(method)

    def lacks(self, task: Task) -> str | None:
        if isinstance(task, LanguageTask) and task.max_turns > 1:
            return f"GroupsBySearch looks for one answer, and task {task.id!r} has several turns: choose "\
                "experience=groups."  # fmt: skip
        if isinstance(task, LanguageTask) and task.judged_by_reward:
            return f"GroupsBySearch asks the task which answers are right, and task {task.id!r} has none."
        return super().lacks(task)

    def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        whole = self.sampling(context)
        trees = Trees(problems, dataclasses.replace(context, samplers=None), whole, self.search.step(whole))
        chosen = self.search.find(trees)
        kept = [self._kept(tree, chosen[tree], trees) for tree in range(len(problems))]
        judged = iter(trees.judged([node for nodes in kept for node in nodes]))
        episodes = []
        for group, nodes in enumerate(kept):
            for node in nodes:
                episode = next(judged)
                if episode.stop is not StopReason.FAULT:
                    episode = row_of(node, episode, context)
                episode.group = group
                episode.info |= {CHOSEN: node is chosen[group], VISITS: node.visits or node.times,
                                 WORTH: [n.value for n in node.path]}  # fmt: skip
                episodes.append(episode)
        return episodes

    def _kept(self, tree: int, chosen: Node, trees: Trees) -> list[Node]:
        """The answers of a tree that are learned from, in the order of the tree, then those sampled at once."""
        found = [n for n in below(trees.roots[tree]) if n.ended] + trees.completed[tree]
        places = [i for i, n in enumerate(found) if n is not chosen][: self.size - 1]
        return [found[i] for i in sorted([*places, *(i for i, n in enumerate(found) if n is chosen)])]


def _unsearched(method: Method, what: str) -> str | None:
    if isinstance(method.slots().get("experience"), GroupsBySearch):
        return None
    return f"reads {what}, and nothing searches: choose experience=groups-by-search."


class SettledAnswers(Filter):
    """Keeps the answers that the search settled on, if they score at least `least` (ReST, arXiv:2308.08998).

    Shapes: scores [B] -> [B], 0 or 1.

    Args:
        least: the lowest score that is learned; a very low one clones whatever the search says.

    >>> from types import SimpleNamespace as Rows
    >>> episodes = [Rows(info={"chosen": c}) for c in (True, True, False)]
    >>> SettledAnswers().weigh(Rows(scores=torch.tensor([1.0, 0.0, 1.0]), episodes=episodes)).tolist()
    [1.0, 0.0, 0.0]
    """

    least: float = 1.0

    def objection(self, method: Method) -> str | None:
        return _unsearched(method, "which answer a search settled on")

    def weigh(self, batch: TokenBatch) -> Tensor:
        chosen = batch.scores.new_tensor([float(e.info[CHOSEN]) for e in batch.episodes])
        return chosen * (batch.scores >= self.least)


class VisitShares(TokenAdvantages):
    """A = N(y) / sum N: how often a search came to an answer, of the problem's (AlphaZero, arXiv:1712.01815).

    With `policy-gradient` the loss is the cross-entropy -sum_y (N(y) / sum N) log pi(y) towards what the search makes
    of the policy. Answers that were merely sampled make nothing of it: their expected gradient is 0. Whole answers are
    compared here, not the next steps at each node, and no value is regressed.

    Shapes: group [B], tokens [B, T] -> [B, T].

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(group=torch.tensor([0, 0, 1]), scores=torch.zeros(3), behaviour_logp=torch.zeros(3, 1))
    >>> rows.episodes = [Rows(info={"visits": n}) for n in (3, 1, 2)]
    >>> VisitShares()(rows).tolist()
    [[0.75], [0.25], [1.0]]
    """

    def objection(self, method: Method) -> str | None:
        return _unsearched(method, "how often a search came to an answer")

    def __call__(self, batch: TokenBatch) -> Tensor:
        from etude.advantages.group import group_sum

        visits = batch.scores.new_tensor([float(e.info[VISITS]) for e in batch.episodes])
        return (visits / group_sum(visits, batch.group))[:, None].expand_as(batch.behaviour_logp)


class GuidePotential(TokenReward):
    """gamma Phi(s') - Phi(s) of each token, Phi being what the search's guide said of the answer so far.

        r'_t = r_t + gamma Phi(s_{t+1}) - Phi(s_t),    sum_t gamma^t r'_t = sum_t gamma^t r_t

    Phi = 0 before the first step and at the end, and changes with the last token of a step: inside of one a token gets
    (gamma - 1) Phi, nothing at gamma = 1.

    Shaping by a potential moves reward to where the guide saw it come, and changes neither what an answer is worth nor
    which policy is best (Ng et al., ICML 1999). A step that the guide was not asked about has Phi of the one before it.
    It reaches advantages that look at rewards from a token on (`reward-to-go`, `gae`).

    Shapes: step [B, T] -> [B, T].

    Args:
        weight: of Phi.
        gamma: the discount of the advantages; refused where theirs is another.

    An answer of three steps, after which the guide said 0.5, 0.75 and 1:

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(step=torch.tensor([[-1, 0, 0, 1, 2]]), rewards=torch.zeros(1, 5))
    >>> rows.episodes = [Rows(info={"worth": [0.5, 0.75, 1.0]})]
    >>> GuidePotential().shape(rows).tolist()
    [[0.0, 0.0, 0.5, 0.25, -0.75]]
    """

    weight: float = 1.0
    gamma: Probability = 1.0

    def objection(self, method: Method) -> str | None:
        theirs = getattr(method.slots().get("advantages"), "gamma", self.gamma)
        if theirs != self.gamma:
            return (
                f"shapes rewards for a discount of {self.gamma:g}, and the advantages have one of {theirs:g}, so that "
                f"what an answer is worth would change: set rewards.{self.name}.gamma={theirs:g}."
            )
        return _unsearched(method, "what a search's guide said of steps")

    def shape(self, batch: TokenBatch) -> Tensor:
        assert batch.step is not None
        shaped = torch.zeros_like(batch.rewards)
        for row, episode in enumerate(batch.episodes):
            said = (batch.step[row] >= 0).nonzero()[:, 0]
            phi = batch.rewards.new_tensor([0.0, *self._potentials(episode.info[WORTH])], dtype=torch.float64)
            before = phi[batch.step[row, said]]  # what was known when its step began
            after = torch.cat([before[1:], phi[-1:]])
            shaped[row, said] = (self.weight * (self.gamma * after - before)).to(shaped)
        return shaped

    @staticmethod
    def _potentials(worth: Sequence[Any]) -> list[float]:
        """Phi after each step."""
        found, last = list[float](), 0.0
        for value in worth[:-1]:
            last = last if value is None else float(value)
            found.append(last)
        return [*found, 0.0]
