"""Search by the upper confidence bound of trees, and pairs of what was best and worst to do next."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from etude.core.episodes import Episode, Problem, Segment, StopReason
from etude.core.fields import Count, NonNegative
from etude.core.slots import Context, TokenExperience
from etude.core.task import LanguageTask, Task
from etude.methods.preference.cosmos_mcts.value import CuriousValue
from etude.planners.guides import Guide
from etude.planners.search import Search, TreeSearch, below
from etude.planners.trees import Node, Trees
from etude.policies.sampling import Sampling

Action = tuple[int, ...]
"""The tokens with which a step begins."""


class UCT(TreeSearch):
    """Monte Carlo tree search by the upper confidence bound: down the tree, one step further, and back up.

        argmax_child  Q + c sqrt(log N_parent / N),    a child that was not seen before all others

    Q is the mean of what the guide said of nodes below; nothing is rolled out to the end. A text is cut after `depth`
    steps. With c = 0 and one way to go on it is plain decoding.

    Args:
        simulations: nodes that are judged. branch: steps sampled after a node when it is visited again.
        exploration: c. depth: most steps.

    >>> from etude.core.draws import Draw
    >>> root = Node(0, Draw(0), 0, visits=4)
    >>> seen, new = Node(0, Draw(1), 1, root, visits=3, total=1.5), Node(0, Draw(2), 2, root)
    >>> [round(UCT(exploration=1.0).score(n), 3) for n in (seen, new)]  # 1/2 + sqrt(log 4 / 3)
    [1.18, inf]
    """

    separator: str = "."
    step_tokens: Count = 8
    simulations: Count = 60
    depth: Count = 6
    guide: Guide = CuriousValue()

    def score(self, node: Node) -> float:
        if not node.visits:
            return math.inf
        assert node.parent is not None
        return node.mean + self.exploration * math.sqrt(math.log(node.parent.visits) / node.visits)

    def _grow(self, nodes: Sequence[Node], trees: Trees) -> None:
        super()._grow(nodes, trees)
        for child in (child for node in nodes for child in node.children):
            if not child.ended and len(child.path) >= self.depth:
                child.ended, child.stop = True, StopReason.MAX_TOKENS


class PairsBySearch(TokenExperience):
    """Pairs of a step that a search found best and one that it found worst, after the same beginning.

    For every node of a problem's tree after which several actions were seen, the one of the highest and the one of the
    lowest Q(s, a) are two rows, in a group of their own, paid 1 and 0: what stands before is shown, and the action is
    learned, which is the first tokens of a step. Q(s, a) is the mean of what was backed up through its N(s, a) visits;
    steps that begin alike are one action, and what follows in them is the world's answer to it. Of a tree without such
    a pair there is one row that says nothing. Trees grow in the process that trains.

    Args:
        search: by which trees grow. action: tokens of an action.
        margin: by how much the best Q must lie above the worst.
        visits: how often an action must have been visited.

    >>> PairsBySearch(search=UCT(simulations=60, branch=4)).rows_per_problem
    2
    """

    samples = False
    search: Search = UCT()
    action: Count = 1
    margin: NonNegative = 0.05
    visits: Count = 2

    @property
    def rows_per_problem(self) -> int:
        return 2

    def lacks(self, task: Task) -> str | None:
        if isinstance(task, LanguageTask) and task.max_turns > 1:
            return f"PairsBySearch goes step by step through one turn, and task {task.id!r} has several."
        return super().lacks(task)

    def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        whole = Sampling(max_tokens=context.max_tokens, stop=tuple(context.task.stop))
        trees = Trees(problems, dataclasses.replace(context, samplers=None), whole, self.search.step(whole))
        self.search.find(trees)
        episodes, group = list[Episode](), 0
        for tree, root in enumerate(trees.roots):
            found = [pair for node in below(root) if (pair := self.pair(node)) is not None]
            rows = [[(node, best, 1.0), (node, worst, 0.0)] for node, best, worst in found]
            rows = rows or [[(root, actions, 0.0)] for actions in list(values(root, self.action))[:1]]
            for row in rows:
                episodes += [self._row(node, action, paid, group, trees) for node, action, paid in row]
                group += 1
            if not rows:
                episodes.append(Episode(problems[tree], group=group, stop=StopReason.CONTEXT_OVERFLOW))
                group += 1
        return episodes

    def pair(self, node: Node) -> tuple[Node, Action, Action] | None:
        """A node with the action of the highest Q after it and that of the lowest; None where these are too near."""
        known = {a: q for a, (q, visits) in values(node, self.action).items() if visits >= self.visits}
        if len(known) < 2:
            return None
        best, worst = max(known, key=known.__getitem__), min(known, key=known.__getitem__)
        return (node, best, worst) if known[best] - known[worst] > self.margin else None

    def _row(self, node: Node, action: Action, paid: float, group: int, trees: Trees) -> Episode:
        """An action after what was said up to a node."""
        decode = trees.context.policy.decode
        before = Segment("assistant", decode(node.tokens), list(node.tokens), [0] * len(node.tokens))
        said = Segment("assistant", decode(list(action)), list(action), [1] * len(action), reward=paid)
        for segment in (before, said):
            segment.behaviour_logp = [0.0] * len(segment.tokens)
        shown = [dataclasses.replace(s) for s in trees.openings[node.tree]]
        segments = [*shown, *([before] if node.tokens else []), said]
        return Episode(trees.starts[node.tree].problem, segments, group, written=True)


def values(node: Node, length: int) -> dict[Action, tuple[float, int]]:
    """Q(s, a) and N(s, a) of each action of so many tokens that was seen after a node.

    >>> from etude.core.draws import Draw
    >>> root = Node(0, Draw(0), 0)
    >>> for tokens, visits, total in (([5, 6], 2, 1.0), ([5, 7], 1, 0.8), ([8, 6], 1, 0.1), ([9, 6], 0, 0.0)):
    ...     root.children.append(Node(0, Draw(1), 1, root, tokens, visits=visits, total=total))
    >>> {a: (round(q, 3), n) for a, (q, n) in values(root, 1).items()}
    {(5,): (0.6, 3), (8,): (0.1, 1)}
    """
    sums = dict[Action, tuple[float, int]]()
    for child in node.children:
        if child.visits:
            action = tuple(child.tokens[len(node.tokens) :][:length])
            total, visits = sums.get(action, (0.0, 0))
            sums[action] = total + child.total, visits + child.visits
    return {action: (total / visits, visits) for action, (total, visits) in sums.items()}
