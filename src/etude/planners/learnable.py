"""Answers that trees came to, as rows that are learned from."""

from __future__ import annotations

from etude.core.episodes import Episode
from etude.core.slots import Context
from etude.planners.trees import Node


def row_of(node: Node, episode: Episode, context: Context) -> Episode:
    """The whole answer at a node as it is learned from, each token with its step (`batch.step`).

    Args:
        episode: the same answer, as the environment answered it (`Trees.judged`).
    """
    lengths = [len(n.tokens) - len(n.parent.tokens) for n in node.path if n.parent is not None]
    (said,) = (s for s in learned(episode).segments if any(s.action_mask))
    said.version = context.policy.version
    said.info = {"pieces": lengths, "step": [k for k, length in enumerate(lengths) for _ in range(length)]}
    cut = node.stop is not None and node.stop.cut
    episode.stop, episode.draw = node.stop if cut and node.stop is not None else episode.stop, node.draw
    return episode


def learned(episode: Episode) -> Episode:
    """An episode in which the policy says again what it said elsewhere, to be learned from."""
    for segment in episode.segments:
        if segment.info.pop("replayed", False):
            segment.action_mask = [1] * len(segment.tokens)
    episode.fork_turn = None
    return episode
