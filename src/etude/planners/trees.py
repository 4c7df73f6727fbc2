"""Trees of answers: what a policy could say, step by step, for many problems side by side.

All that is said at a time, of whatever tree, is sampled as one batch, and what nodes share is read once: a node is a
row of a conversation (`etude.policies.conversation`) that its children are forked from.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from etude.core.draws import Draw
from etude.core.episodes import Episode, Problem, Segment, StopReason, occurrences
from etude.core.slots import Context
from etude.experience.rollout import Start, rollout
from etude.experience.seats import blank
from etude.policies.chat import opening
from etude.policies.sampling import Completion, Sampling, truncate
from etude.policies.showing import shown

UNREAD = -1
"""The row of a node that was only thought of."""


@dataclass(eq=False)
class Node:
    """A step of an answer, and what is known of it.

    Args:
        tree: number of the problem.
        draw: where the random numbers of what comes after it come from.
        row: its handle in the conversation.
        parent: the step before; None: it is the root, at which nothing was said.
        tokens, logp: of the whole answer so far, [n] each, as they were sampled.
        ended: whether nothing comes after it.
        stop: why it ended, where it did so in a step.
        times: how often its parent said it.
        value: what a guide says of it; None: none was asked.
        visits, total: of a search, how often it came by, and the sum of what it found.
    """

    tree: int
    draw: Draw
    row: int
    parent: Node | None = None
    tokens: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    ended: bool = False
    stop: StopReason | None = None
    times: int = 1
    value: float | None = None
    visits: int = 0
    total: float = 0.0
    children: list[Node] = field(default_factory=list)

    @property
    def prior(self) -> float:
        """The share of what its parent said that was this; 1 for the root."""
        return 1.0 if self.parent is None else self.times / sum(n.times for n in self.parent.children)

    @property
    def path(self) -> list[Node]:
        """The steps from the first of the answer to this one; none for the root."""
        return [] if self.parent is None else [*self.parent.path, self]

    @property
    def mean(self) -> float:
        """Mean of what was found below it; 0 where nothing was looked for."""
        return self.total / self.visits if self.visits else 0.0


class Trees:
    """One tree for each problem, and the policy that they grow by.

    Args:
        problems: of a task with a single turn.
        sampling: of a whole answer: its `max_tokens` are the limit of one, and its `stop` ends one.
        step: of one step of it: the other strings of its `stop` end a step alone.

    `generated` [problems] counts the tokens that were sampled; `completed` [problems] has the whole answers that were
    said at once (`complete`). `made` is for guides, which keep there what they compute once for all trees.
    """

    def __init__(self, problems: Sequence[Problem], context: Context, sampling: Sampling, step: Sampling) -> None:
        self.context, self.sampling, self.step = context, sampling, step
        self.starts = [
            Start(problem, place, context.stream.draw("problem", problem.id, number))
            for place, (problem, number) in enumerate(zip(problems, occurrences(problems)))
        ]
        self.generated = [0] * len(problems)
        self.made: dict[str, Any] = {}
        self.completed: list[list[Node]] = [[] for _ in problems]
        self.talk = context.policy.converse()
        self.openings = [self._opening(start) for start in self.starts]
        rows = self.talk.open([[t for s in segments for t in s.tokens] for segments in self.openings])
        self.roots = [Node(i, start.draw, row) for i, (start, row) in enumerate(zip(self.starts, rows))]

    def _opening(self, start: Start) -> list[Segment]:
        """What the policy sees at first, with its tokens."""
        task, policy = self.context.task, self.context.policy
        seen = shown(task.played_in().reset(start.problem, blank(start).seed), task, policy)
        for segment, tokens in zip(seen, opening(seen, policy, task.add_bos)):
            segment.tokens, segment.action_mask = tokens, [0] * len(tokens)
            segment.behaviour_logp = [0.0] * len(tokens)
        return seen

    # Saying more

    def expand(self, nodes: Sequence[Node], count: int) -> None:
        """Say a next step `count` times after each node; what was said already stands once, and is counted."""
        for node, made in zip(nodes, self._steps(nodes, count)):
            for step in made:
                same = next((n for n in node.children if n.tokens == step.tokens), None)
                if same is None:
                    node.children.append(step)
                else:
                    same.times += 1
                    self.talk.close([step.row])

    def branch(self, nodes: Sequence[Node], count: int) -> list[list[Node]]:
        """Say a next step `count` times after each node, each a child of its own, whatever others say; those made."""
        found = self._steps(nodes, count)
        for node, made in zip(nodes, found):
            node.children += made
        return found

    def _steps(self, nodes: Sequence[Node], count: int) -> list[list[Node]]:
        """`count` next steps of each node."""
        pairs = [(node, number) for node in nodes for number in range(count)]
        draws = [node.draw.child("step", sum(n.times for n in node.children) + number) for node, number in pairs]
        said = self._say([node for node, _ in pairs], draws, self.step)
        made = []
        for (node, _), draw, (row, completion) in zip(pairs, draws, said):
            tokens = [*node.tokens, *completion.tokens]
            step = Node(node.tree, draw, row, node, tokens, [*node.logp, *completion.logp])
            step.stop = self._stop(completion, step)
            step.ended = step.stop is not None
            made.append(step)
        return [made[i : i + count] for i in range(0, len(made), count)]

    def likeliest(self, nodes: Sequence[Node], count: int) -> list[list[Node]]:
        """The `count` likeliest next tokens of each node, likeliest first: nodes that nothing can follow until `admit`.

        Each node is asked once.
        """
        logits = self.talk.following([node.row for node in nodes], self.sampling.max_tokens)
        best = truncate(logits / self.sampling.temperature, self.sampling).log_softmax(-1)
        values, tokens = best.topk(min(count, best.shape[-1]))
        return [
            [
                Node(node.tree, node.draw, UNREAD, node, [*node.tokens, token], [*node.logp, value])
                for value, token in zip(*said)
                if value > -math.inf
            ]
            for node, *said in zip(nodes, values.tolist(), tokens.tolist())
        ]

    def admit(self, nodes: Sequence[Node]) -> None:
        """Let nodes that `likeliest` named be gone on from, or end where their answer does."""
        parents = [node.parent.row for node in nodes if node.parent is not None]
        rows = self.talk.fork(parents)
        self.talk.extend(rows, [node.tokens[-1:] for node in nodes])
        ends = {*self.context.policy.end_ids}
        for node, row in zip(nodes, rows, strict=True):
            over = StopReason.END_OF_TEXT if node.tokens[-1] in ends else StopReason.MAX_TOKENS
            node.row = row
            node.stop = self._stop(Completion(node.tokens, stop=over), node)
            node.ended = node.stop is not None
            self.generated[node.tree] += 1
        self.close([node for node in nodes if node.ended])

    def complete(self, nodes: Sequence[Node], count: int) -> list[list[Node]]:
        """`count` whole answers that go on from each node, the likeness of leaves; they are not made its children.

        After the root they are the answers that an evaluation with the same seed samples, in the same order.
        """
        pairs = [(node, number) for node in nodes for number in range(count)]
        draws = [
            (node.draw.child(n) if node.parent is None else node.draw.child("whole", n)).child("turn", 0, "tokens")
            for node, n in pairs
        ]
        said = self._say([node for node, _ in pairs], draws, self.sampling)
        self.talk.close([row for row, _ in said])
        made = [
            Node(node.tree, draw, row, node, [*node.tokens, *c.tokens], [*node.logp, *c.logp], True, c.stop)
            for (node, _), draw, (row, c) in zip(pairs, draws, said)
        ]
        for leaf in made:
            self.completed[leaf.tree].append(leaf)
        return [made[i : i + count] for i in range(0, len(made), count)]

    def begin(self, root: Node, count: int) -> list[Node]:
        """`count` answers of which nothing is said yet; said by `resume` they come to those of `complete`."""
        draws = [root.draw.child(n).child("turn", 0, "tokens") for n in range(count)]
        return [Node(root.tree, draw, row, root) for draw, row in zip(draws, self.talk.fork([root.row] * count))]

    def resume(self, nodes: Sequence[Node], count: int) -> None:
        """Say up to `count` tokens more of answers that were begun, in place: they are as if they were said at once."""
        rooms = [min(count, self.sampling.max_tokens - len(node.tokens)) for node in nodes]
        for room in sorted({*rooms}):
            some = [node for node, own in zip(nodes, rooms) if own == room]
            how = dataclasses.replace(self.sampling, max_tokens=room)
            said = self.talk.sample([n.row for n in some], how, [n.draw for n in some], [len(n.tokens) for n in some])
            for node, completion in zip(some, said):
                self.generated[node.tree] += len(completion.tokens)
                node.tokens, node.logp = node.tokens + completion.tokens, node.logp + completion.logp
                node.stop = self._stop(dataclasses.replace(completion, tokens=node.tokens), node)
                node.ended = node.stop is not None

    def close(self, nodes: Sequence[Node]) -> None:
        """Forget what is kept of nodes that nothing is to be said after."""
        self.talk.close([node.row for node in nodes])

    def _say(
        self, nodes: Sequence[Node], draws: Sequence[Draw], sampling: Sampling
    ) -> list[tuple[int, Completion]]:  # fmt: skip
        """One completion after each node, in a row forked from it."""
        rows = self.talk.fork([node.row for node in nodes])
        rooms = [min(sampling.max_tokens, self.sampling.max_tokens - len(node.tokens)) for node in nodes]
        found: dict[int, Completion] = {}
        for room, members in groupby(sorted(range(len(nodes)), key=rooms.__getitem__), key=rooms.__getitem__):
            chosen = list(members)
            how = dataclasses.replace(sampling, max_tokens=room)
            said = self.talk.sample([rows[i] for i in chosen], how, [draws[i] for i in chosen])
            found.update(zip(chosen, said))
        for i, node in enumerate(nodes):
            self.generated[node.tree] += len(found[i].tokens)
        return [(row, found[i]) for i, row in enumerate(rows)]

    def _stop(self, completion: Completion, node: Node) -> StopReason | None:
        """Why an answer is over with this step of it; None: it goes on."""
        if completion.stop in (StopReason.END_OF_TEXT, StopReason.CONTEXT_OVERFLOW):
            return completion.stop
        text = self.context.policy.decode(completion.tokens)
        if any(s in text for s in self.sampling.stop):
            return StopReason.STOP_STRING
        if len(node.tokens) >= self.sampling.max_tokens:
            return StopReason.MAX_TOKENS
        full = len(self.talk.tokens(node.row)) >= self.context.policy.context
        return StopReason.CONTEXT_OVERFLOW if full else None

    # What answers are worth

    def episodes(self, nodes: Sequence[Node]) -> list[Episode]:
        """Nodes as episodes that the environment has not answered."""
        found = []
        for node in nodes:
            episode = blank(self.starts[node.tree])
            episode.segments = [dataclasses.replace(s) for s in self.openings[node.tree]] + [self._segment(node)]
            found.append(episode)
        return found

    def judged(self, nodes: Sequence[Node]) -> list[Episode]:
        """Whole answers as episodes, with what the environment answered."""
        starts = [self.starts[node.tree]._replace(segments=(self._segment(node),)) for node in nodes]
        return rollout(starts, self.context, self.sampling)

    def _segment(self, node: Node) -> Segment:
        said = self.context.policy.decode(node.tokens)
        return Segment("assistant", said, list(node.tokens), [1] * len(node.tokens), list(node.logp))
