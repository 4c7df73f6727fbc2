"""Searching for an answer with a policy and a guide: more samples, votes, beams and trees (arXiv:2412.14135, 5)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from etude.core.errors import ConfigError
from etude.core.fields import Count, NonNegative
from etude.core.part import Part
from etude.core.worlds import World
from etude.planners.guides import Guide, Lookahead, MeanLikelihood
from etude.planners.trees import Node, Trees
from etude.policies.sampling import Sampling


class Search(Part, abstract=True):
    """How one answer to a problem is found."""

    slot = "search"
    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})
    measure: ClassVar[str] = "samples"
    """The field that says how much is searched: N in 'best-of:N'."""

    @property
    def rows(self) -> int:
        """Answers to a problem that are sampled at a time."""
        raise NotImplementedError

    def step(self, whole: Sampling) -> Sampling:
        """How a step is sampled where a whole answer is sampled so; where nothing goes by steps they are the same."""
        return whole

    def find(self, trees: Trees) -> list[Node]:
        """The answer to each problem, whole."""
        raise NotImplementedError


class StepSearch(Search, abstract=True):
    """A search that goes by steps, and asks its guide after each.

    Args:
        separator: text that ends a step. step_tokens: most tokens of one.

    Raises: ConfigError for no separator, or a guide that says nothing of the beginning of an answer.
    """

    separator: str = "\n"
    step_tokens: Count = 64
    guide: Guide = MeanLikelihood()

    def check(self) -> None:
        if not self.separator:
            raise ConfigError(f"{type(self).__name__}.separator must be the text that ends a step, got none.")
        if not self.guide.partial:
            raise ConfigError(
                f"{self.guide.name} says nothing of the beginning of an answer, by which {self.name} goes: take "
                "guide=lookahead, which asks it about answers that are sampled from there on, or search by best-of."
            )

    def step(self, whole: Sampling) -> Sampling:
        return replace(whole, max_tokens=self.step_tokens, stop=(self.separator, *whole.stop))


class BestOf(Search):
    """Of so many answers the one that is worth most; of equals the first.

    With one sample it is the policy itself, with the verifier its success is pass@N.

    >>> BestOf(samples=16).rows
    16
    """

    samples: Count = 8
    guide: Guide = MeanLikelihood()

    @property
    def rows(self) -> int:
        return self.samples

    def find(self, trees: Trees) -> list[Node]:
        groups = trees.complete(trees.roots, self.samples)
        self.guide.ask([node for group in groups for node in group], trees)
        return [max(group, key=worth) for group in groups]


class MajorityVote(Search):
    """Of so many answers one whose result is the most frequent; of equally frequent ones the first (arXiv:2203.11171).

    An answer without a result does not vote.

    Of three answers, two of which come to 7:

    >>> from types import SimpleNamespace as Some
    >>> texts = Some(policy=Some(decode="".join), task=Some(answer=lambda text: text[-1]))
    >>> nodes = [Some(tokens=["3+5=8"]), Some(tokens=["2+5=7"]), Some(tokens=["so 7"])]
    >>> MajorityVote()._elected(nodes, Some(context=texts)).tokens
    ['2+5=7']
    """

    samples: Count = 8

    @property
    def rows(self) -> int:
        return self.samples

    def find(self, trees: Trees) -> list[Node]:
        return [self._elected(group, trees) for group in trees.complete(trees.roots, self.samples)]

    def _elected(self, group: Sequence[Node], trees: Trees) -> Node:
        results = [trees.context.task.answer(trees.context.policy.decode(node.tokens)) for node in group]
        votes = Counter(result for result in results if result)
        return group[results.index(votes.most_common(1)[0][0])] if votes else group[0]


class Beam(StepSearch):
    """Step by step, the `width` beginnings that are worth most, each of which goes on in `branch` ways.

    Answers that are whole stay among them until all are. Of width 1 it is greedy over steps; with `guide=lookahead` a
    step is judged by what becomes of it.

    Args:
        width: beginnings that are kept. branch: ways in which each goes on; the first step is sampled width x branch
            times.

    >>> Beam(width=4, branch=2).rows
    8
    """

    measure: ClassVar[str] = "width"
    width: Count = 4
    branch: Count = 4

    @property
    def rows(self) -> int:
        return self.width * self.branch

    def find(self, trees: Trees) -> list[Node]:
        trees.expand(trees.roots, self.width * self.branch)
        beams = self._kept([root.children for root in trees.roots], trees)
        while begun := [node for beam in beams for node in beam if not node.ended]:
            trees.expand(begun, self.branch)
            grown = [[n for node in beam for n in ([node] if node.ended else node.children)] for beam in beams]
            trees.close(begun)
            beams = self._kept(grown, trees)
        return [beam[0] for beam in beams]

    def _kept(self, candidates: Sequence[Sequence[Node]], trees: Trees) -> list[list[Node]]:
        """The best of each tree's, best first; of equals those that were said first."""
        self.guide.ask([node for nodes in candidates for node in nodes], trees)
        ranked = [sorted(nodes, key=worth, reverse=True) for nodes in candidates]
        trees.close([node for nodes in ranked for node in nodes[self.width :] if not node.ended])
        return [nodes[: self.width] for nodes in ranked]


class TreeSearch(StepSearch):
    """Monte Carlo tree search: down the tree by value and prior, one step further, and back up (AlphaZero's PUCT).

        argmax_child  Q + c P sqrt(N_parent) / (1 + N)

    P is the share of the sampled steps that were this one, Q the mean of what the guide said of nodes below. The answer
    is the whole one with the highest Q, of equals the one seen most often; where none was found, the policy goes on
    from the step that was visited most.

    Args:
        simulations: nodes that are judged.
        branch: steps sampled after a node when it is visited again.
        exploration: c.

    Source: arXiv:1712.01815; as a search of language arXiv:2412.14135, section 5.3.

    >>> from etude.core.draws import Draw
    >>> root = Node(0, Draw(0), 0, visits=4)
    >>> seen, new = Node(0, Draw(1), 1, root, times=3, visits=3, total=1.5), Node(0, Draw(2), 2, root)
    >>> root.children += [seen, new]
    >>> [round(TreeSearch(exploration=1.0).score(n), 3) for n in root.children]  # 1/2 + 3/4 2/4 and 0 + 1/4 2/1
    [0.875, 0.5]
    """

    measure: ClassVar[str] = "simulations"
    simulations: Count = 32
    branch: Count = 4
    exploration: NonNegative = 1.0
    guide: Guide = Lookahead(samples=1)

    @property
    def rows(self) -> int:
        return self.branch

    def score(self, node: Node) -> float:
        """By which the way down is chosen, of a node that is not the root."""
        assert node.parent is not None
        return node.mean + self.exploration * node.prior * math.sqrt(max(node.parent.visits, 1)) / (1 + node.visits)

    def find(self, trees: Trees) -> list[Node]:
        for _ in range(self.simulations):
            leaves = [self._down(root) for root in trees.roots]
            again = [n for n in leaves if not n.ended and (n.visits or n.parent is None)]
            self._grow(again, trees)
            reached = [self._down(node) for node in leaves]
            self.guide.ask(reached, trees)
            for node in reached:
                back_up(node)
        whole = [[n for n in below(root) if n.ended and n.visits] for root in trees.roots]
        open_ends = [most_visited(root) for root, found in zip(trees.roots, whole) if not found]
        completed = iter(trees.complete(open_ends, 1))
        return [max(found, key=lambda n: (n.mean, n.visits)) if found else next(completed)[0] for found in whole]

    def _grow(self, nodes: Sequence[Node], trees: Trees) -> None:
        """Say what could come after each of these."""
        trees.expand(nodes, self.branch)

    def _down(self, node: Node) -> Node:
        while node.children:
            node = max(node.children, key=self.score)
        return node


def worth(node: Node) -> float:
    """What a guide said of a node that it was asked about."""
    assert node.value is not None
    return node.value


def back_up(node: Node) -> None:
    """Count what was found at a node in all that led to it."""
    found, at = worth(node), node
    while True:
        at.visits, at.total = at.visits + 1, at.total + found
        if at.parent is None:
            return
        at = at.parent


def below(node: Node) -> list[Node]:
    """A node and all that come after it."""
    return [node, *(n for child in node.children for n in below(child))]


def most_visited(node: Node) -> Node:
    """The end of the way on which a search came by most often."""
    while node.children:
        node = max(node.children, key=lambda n: n.visits)
    return node
