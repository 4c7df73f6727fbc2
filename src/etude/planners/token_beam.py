"""Beam search on what the policy itself finds likely, token by token, without chance (arXiv:2404.12358, section 5.3).

With beta log ref folded into the reward, what the optimum of a KL-regularised reward says of a beginning is

    beta sum_t log pi(a_t | s_t) = (reward so far + V*(s)) - V*(s_0),

the score of a search that goes by reward and value: of such a policy, likelihood is the value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from etude.core.fields import Count
from etude.planners.search import Search
from etude.planners.trees import UNREAD, Node, Trees


class TokenBeam(Search):
    """Token by token, the `width` beginnings that are likeliest; of width 1 the greedy answer.

    Of a width that drops nothing it is the likeliest answer that there is. Whole answers stay among the others; by the
    sum of log-probabilities a tree is done when one is the likeliest of all, for no longer one can become so.

    Args:
        width: beginnings that are kept. per_token: whether answers are compared by the mean log-probability of their
            tokens, which does not favour short ones.

    >>> from etude.core.draws import Draw
    >>> short, long = (Node(0, Draw(0), 0, tokens=[1] * n, logp=[-0.5] * n) for n in (2, 3))
    >>> long.logp[0] = -0.1
    >>> [search._kept([long, short])[0] is short for search in (TokenBeam(width=1), TokenBeam(width=1, per_token=True))]
    [True, False]
    """

    measure: ClassVar[str] = "width"
    width: Count = 5
    per_token: bool = False

    @property
    def rows(self) -> int:
        return self.width

    def find(self, trees: Trees) -> list[Node]:
        beams = [[root] for root in trees.roots]
        while begun := [node for beam in beams for node in beam if not node.ended]:
            after = iter(trees.likeliest(begun, self.width))
            grown = [[n for node in beam for n in ([node] if node.ended else next(after))] for beam in beams]
            beams = [self._kept(nodes) for nodes in grown]
            trees.admit([node for beam in beams for node in beam if node.row == UNREAD])
            trees.close(begun)
            beams = [self._decided(beam, trees) for beam in beams]
        return [beam[0] for beam in beams]

    def _decided(self, beam: list[Node], trees: Trees) -> list[Node]:
        """The first alone where none of the others can become likelier."""
        if self.per_token or not beam[0].ended:
            return beam
        trees.close([node for node in beam if not node.ended])
        return beam[:1]

    def _kept(self, nodes: Sequence[Node]) -> list[Node]:
        """The likeliest, likeliest first; of equals those that were said first."""
        return sorted(nodes, key=self._worth, reverse=True)[: self.width]

    def _worth(self, node: Node) -> float:
        total = sum(node.logp)
        return total / len(node.logp) if self.per_token else total
