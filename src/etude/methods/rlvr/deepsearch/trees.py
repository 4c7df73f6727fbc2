"""Answers that a tree search came to, as the completions of a group: every one a row, with what its steps are worth."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch

from etude.core.batches import TokenBatch
from etude.core.draws import uniforms
from etude.core.episodes import Episode, Problem, StopReason
from etude.core.fields import Count, Fraction, Interval, NonNegative, Probability
from etude.core.kept import Kept
from etude.core.part import Part
from etude.core.slots import Context
from etude.core.task import LanguageTask, Task
from etude.core.worlds import World
from etude.experience.groups import Groups
from etude.experience.rollout import Start, fresh, rollout
from etude.planners.learnable import learned, row_of
from etude.planners.search import below
from etude.planners.trees import Node, Trees
from etude.policies.sampling import Sampling

if TYPE_CHECKING:
    from etude.core.method import Method


class Onward(Part, abstract=True):
    """Which step a search goes on from once it has come to the end of an answer."""

    slot = "onward"
    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})

    def choose(self, root: Node, tree: SearchedGroups, turn: int) -> Node | None:
        """A step that nothing was said after yet, never the root; None where there is none.

        Args:
            turn: how many answers were kept before.
        """
        raise NotImplementedError


class GlobalFrontier(Onward):
    """Of all steps that nothing was said after the one with the highest

        F = quality tanh(Q of the step before) + entropy H + depth sqrt(d / D),

    of equals the first of the tree. H is the mean of -log p of the step's own tokens, d its depth, D the most.

    Two steps after one of Q = 1, and one after the first of them, of Q = 0:

    >>> from etude.core.draws import Draw
    >>> root = Node(0, Draw(0), 0, visits=1, total=1.0)
    >>> short, seen = (Node(0, Draw(i), i, root, tokens=[7], logp=[-0.5], visits=1) for i in (1, 2))
    >>> root.children += [seen, short]
    >>> seen.children.append(Node(0, Draw(3), 3, seen, tokens=[7, 8], logp=[-0.5, -2.0]))
    >>> [GlobalFrontier(depth=d).choose(root, SearchedGroups(), 0).draw.key for d in (0.01, 9.0)]
    [1, 3]
    """

    quality: NonNegative = 0.4
    entropy: NonNegative = 0.0
    depth: NonNegative = 0.01

    def choose(self, root: Node, tree: SearchedGroups, turn: int) -> Node | None:
        frontier = [n for n in below(root) if n.parent is not None and not n.ended and not n.children]
        return max(frontier, key=lambda n: self.score(n, tree.depth), default=None)

    def score(self, node: Node, deepest: int) -> float:
        """F of a step that is not the root."""
        assert node.parent is not None
        surprise = -fmean(node.logp[len(node.parent.tokens) :]) if self.entropy else 0.0
        bonus = self.depth * math.sqrt(len(node.path) / deepest)
        return self.quality * math.tanh(node.parent.mean) + self.entropy * surprise + bonus


class FromTheRoot(Onward):
    """Down from the prompt, step by step as `SearchedGroups` draws them, to one that nothing was said after (UCT).

    Two steps, one of which has ended:

    >>> from etude.core.draws import Draw
    >>> root = Node(0, Draw(0), 0)
    >>> root.children += [Node(0, Draw(1), 1, root, ended=True), Node(0, Draw(2), 2, root)]
    >>> FromTheRoot().choose(root, SearchedGroups(), 0).draw.key
    2
    """

    def choose(self, root: Node, tree: SearchedGroups, turn: int) -> Node | None:
        node = root
        while node.children:
            ways = [n for n in node.children if _open(n)]
            if not ways:
                return None
            node = tree.drawn(node, ways, turn)
        return None if node is root else node


def _open(node: Node) -> bool:
    """Whether a step below it, or it itself, can be gone on from."""
    return not node.ended and (not node.children or any(map(_open, node.children)))


@dataclass
class _Search:
    """One problem's: where it is, and the ends that it came to, kept or not."""

    root: Node
    at: Node | None
    kept: list[Node] = field(default_factory=list)
    spare: list[Node] = field(default_factory=list)


class SearchedGroups(Groups):
    """`size` answers of each problem that a Monte Carlo tree search came to (DeepSearch, arXiv:2509.25454).

    A step is said `width` times at once. While none of these ends the answer, the search goes on from one of them,
    drawn by the softmax of

        UCT = Q + exploration sqrt(ln N_before / N),    Q = q / N,    the root only where N or N_before is 0,

    else one of the ends is kept, a right one if there is, else a wrong one, else one that was cut, of these the one
    whose tokens were likeliest on average, and its outcome v, 1 or -1, is backed up: to each step of its path, number i
    of l with the prompt as the first, N <- N + 1 and, with g = max(i / l, least),

        q <- q + g v where q v >= 0,    g v where q < 0 < v,    q where v < 0 < q.

    New steps that do not end the answer count as visited, N <- N + 1. Then `onward` says where to go on. Where nothing
    can be gone on from, ends that were passed over are kept in the same order until there are `size`; a group may stay
    smaller. `info["worth"]` of an episode has q of its steps as they are when the search is over, the last of them v.

    A problem that a search solved, but at most at a share of `replayed`, is not searched the next time: its right
    answers take part again, with the log-probabilities of when they were sampled, beside as many fresh completions as
    are missing; once more of these are right it is searched again. Tasks with a single turn. Trees grow in the
    process that trains, whatever samplers a run has. `expansions` in the metrics counts how often a step was gone on
    from, `solved_prompts` the prompts with a right answer among those that are learned from.

    Args:
        size: answers that are kept. width: how often a step is said at once.
        depth: most steps of an answer; what has not ended by then is cut.
        separator: text that ends a step; empty: none does. step_tokens: most tokens of one; None: limit / depth.
        greedy: the highest UCT instead of a draw.
        least: smallest g. incomplete: v of what was cut and is wrong; with 0 nothing is backed up.
        replayed: 0: nothing is.
        limit: most answers that are kept for that.

    Shapes: an episode of l steps has `info["worth"]` [L], and each of its rows `step` [B, T].

    >>> part = SearchedGroups(size=8, width=4, depth=4)
    >>> part.rows_per_problem, [part.backed(q, gain) for q, gain in ((0.5, -1.0), (-0.3, 0.5), (-0.3, -0.5))]
    (8, [0.5, 0.5, -0.8])
    """

    size: Count = 8
    width: Count = 8
    depth: Count = 64
    separator: str = ""
    step_tokens: Count | None = None
    exploration: NonNegative = 2.0
    greedy: bool = False
    onward: Onward = GlobalFrontier()
    least: Fraction = 0.1
    incomplete: Annotated[float, Interval(ge=-1, le=0)] = -1.0
    replayed: Probability = 0.25
    limit: Count | None = None

    def objection(self, method: Method) -> str | None:
        if method.slots().get("second_look") is not None:
            return "searches for answers by itself, and has no steps of those that second_look adds: leave it out."
        objective = method.slots().get("objective")
        if self.replayed and objective is not None and objective.fresh_rows:
            return (
                f"learns again from answers of earlier steps, and {type(objective).__name__} is right on rows of the "
                "present policy only: set experience.replayed=0, or choose objective=clipped-surrogate."
            )
        return super().objection(method)

    def lacks(self, task: Task) -> str | None:
        if isinstance(task, LanguageTask) and task.max_turns > 1:
            return f"{type(self).__name__} goes step by step through one turn, and task {task.id!r} has several: "\
                "choose experience=groups."  # fmt: skip
        if isinstance(task, LanguageTask) and task.judged_by_reward:
            return f"{type(self).__name__} asks the task which answers are right, and task {task.id!r} has none."
        return super().lacks(task)

    # What is kept of earlier steps

    def initial_state(self) -> dict[str, Any]:
        return Kept.empty()

    @property
    def kept(self) -> Kept:
        """Right answers to problems that are seldom solved, as they stand in this part's state."""
        return Kept(self.state, limit=self.limit, each=self.size)

    def before_update(self, batch: TokenBatch) -> None:
        assert batch.solved is not None
        for group in dict.fromkeys(batch.group.tolist() if self.replayed else ()):
            rows = [i for i in (batch.group == group).nonzero()[:, 0].tolist() if not _old(batch.episodes[i])]
            right = [i for i in rows if bool(batch.solved[i])]
            if not rows:
                continue
            seldom, problem = len(right) <= self.replayed * len(rows), batch.episodes[rows[0]].problem.id
            if "worth" not in batch.episodes[rows[0]].info:
                if not seldom:
                    self.kept.forget(problem)
            elif seldom and not self.kept.of(problem):
                self.kept.put([batch.episodes[i] for i in right])

    def after_update(self, batch: TokenBatch) -> None:
        self.kept.step()

    # What becomes of a step's problems

    def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        old = {i: found for i, p in enumerate(problems) if (found := self.kept.of(p.id)[: self.size])}
        new = [i for i in range(len(problems)) if i not in old]
        episodes = self._again(problems, old, context) if old else []
        for place, found in zip(new, self._searched([problems[i] for i in new], context) if new else ()):
            for episode in found:
                episode.group = place
            episodes += found
        context.policy.work["solved_prompts"] += len({e.group for e in episodes if _right(e)})
        return sorted(episodes, key=lambda e: e.group)

    def _again(self, problems: Sequence[Problem], old: dict[int, list[Episode]], context: Context) -> list[Episode]:
        """Right answers of earlier steps, and as many fresh completions as are missing."""
        sizes = [self.size - len(old[i]) if i in old else 0 for i in range(len(problems))]
        all_starts = fresh(problems, [self.size if i in old else 0 for i in range(len(problems))], context.stream)
        starts, said = list[Start](), list[Start]()
        for place in old:
            own = [s for s in all_starts if s.group == place]
            starts += own[: sizes[place]]
            turns = [next(s for s in e.segments if any(s.action_mask)) for e in old[place]]
            said += [at._replace(segments=(turn,)) for at, turn in zip(own[sizes[place] :], turns)]
        sampling = self.sampling(context)
        replayed = [learned(e) for e in rollout(said, context, sampling)]
        for episode in replayed:
            episode.info["replayed"] = True
        found = (rollout(starts, context, sampling, self.view) if starts else []) + replayed
        for turn in (s for e in found for s in e.segments if any(s.action_mask)):
            turn.info["step"] = [0] * len(turn.tokens)  # of one
        return found

    # The search

    def _searched(self, problems: Sequence[Problem], context: Context) -> list[list[Episode]]:
        """The answers to each problem that a search came to; all trees grow together."""
        whole, alone = self.sampling(context), dataclasses.replace(context, samplers=None)
        trees = Trees(problems, alone, whole, self._step(whole))
        searches, found = [_Search(root, root) for root in trees.roots], dict[int, Episode]()
        while going := [s for s in searches if s.at is not None]:
            context.policy.work["expansions"] += len(going)
            at = [s.at for s in going if s.at is not None]
            made = trees.branch(at, self.width)
            for node in (n for nodes in made for n in nodes if len(n.path) >= self.depth and not n.ended):
                node.ended, node.stop = True, StopReason.MAX_TOKENS
            ends = [n for nodes in made for n in nodes if n.ended]
            found |= self._judged(ends, trees)
            trees.close([*ends, *at])
            for search, nodes in zip(going, made):
                search.at = self._after(search, nodes)
        return [[_worthy(node, found[id(node)], context) for node in search.kept] for search in searches]

    def _step(self, whole: Sampling) -> Sampling:
        tokens = self.step_tokens or -(-whole.max_tokens // self.depth)
        return dataclasses.replace(whole, max_tokens=tokens, stop=(*filter(None, (self.separator,)), *whole.stop))

    def _judged(self, ends: Sequence[Node], trees: Trees) -> dict[int, Episode]:
        """Whole answers as episodes, and their outcomes as the nodes' values; what nobody could judge has none."""
        episodes = trees.judged(ends) if ends else []
        for node, episode in zip(ends, episodes):
            if episode.stop is not StopReason.FAULT:
                assert node.stop is not None
                lost = self.incomplete if node.stop.cut else -1.0
                node.value = 1.0 if trees.context.task.success(episode) else lost
        return {id(node): episode for node, episode in zip(ends, episodes)}

    def _after(self, search: _Search, made: Sequence[Node]) -> Node | None:
        """Where a search goes on after an expansion; None: it is over."""
        begun, ends = [n for n in made if not n.ended], [n for n in made if n.value is not None]
        for node in begun:
            node.visits += 1
        search.spare += ends
        if ends:
            self._keep(search, ends)
        if len(search.kept) >= self.size:
            return None
        if begun and not ends:
            assert search.at is not None
            return self.drawn(search.at, begun, len(search.kept))
        onward = self.onward.choose(search.root, self, len(search.kept))
        while onward is None and search.spare and len(search.kept) < self.size:
            self._keep(search, search.spare)
        return onward

    def _keep(self, search: _Search, ends: Sequence[Node]) -> None:
        """Keep the best of these ends, and back its outcome up."""
        best = min(ends, key=lambda n: (n.value != 1.0, n.stop is not None and n.stop.cut, -fmean(n.logp)))
        search.kept.append(best)
        search.spare = [n for n in search.spare if n is not best]
        assert best.value is not None
        path = [search.root, *best.path]
        for number, node in enumerate(path, 1):
            node.visits += 1
            node.total = self.backed(node.total, max(number / len(path), self.least) * best.value)

    @staticmethod
    def backed(q: float, gain: float) -> float:
        """What q becomes where g v is backed up to it."""
        return q + gain if q * gain >= 0 else gain if gain > 0 else q

    def uct(self, node: Node) -> float:
        """By which the way is drawn, of a step that is not the root."""
        assert node.parent is not None
        if not node.visits or not node.parent.visits:
            return node.mean
        return node.mean + self.exploration * math.sqrt(math.log(node.parent.visits) / node.visits)

    def drawn(self, node: Node, ways: Sequence[Node], turn: int) -> Node:
        """One of these next steps of a node, by the softmax of their UCT, or the first with the highest."""
        scores = [self.uct(n) for n in ways]
        if self.greedy:
            return ways[scores.index(max(scores))]
        shares = torch.tensor(scores, dtype=torch.float64).softmax(0).cumsum(0)
        number = uniforms(torch.tensor([node.draw.child("way", turn).key]), 0, 1)[0]
        return ways[min(int((shares <= number).sum()), len(ways) - 1)]


def _old(episode: Episode) -> bool:
    """Whether it was sampled in an earlier step."""
    return bool(episode.info.get("replayed"))


def _right(episode: Episode) -> bool:
    """Whether a search ended in it and found it right; what is kept of earlier steps is."""
    return _old(episode) or episode.info.get("worth", [-1.0])[-1] == 1.0


def _worthy(node: Node, episode: Episode, context: Context) -> Episode:
    """A kept answer as it is learned from: with its steps, and what they are worth."""
    found = row_of(node, episode, context)
    found.info["worth"] = [n.total for n in node.path]
    return found
