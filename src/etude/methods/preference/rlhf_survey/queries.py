"""Which questions people are asked, of many that could be."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from etude.core.part import Part


class Queries(Part, abstract=True):
    """Which of Q questions are asked."""

    slot = "queries"
    wide: ClassVar[bool] = True
    """Whether it wants more questions to choose from than are asked."""

    def pick(self, chances: Tensor, shown: Tensor, count: int) -> Tensor:
        """Places of the questions that are asked, [P, count].

        Args:
            chances: [P, M, Q, O] of each option, by each of M models.
            shown: [P, Q, F] what is shown, as one vector.
        """
        return self.scores(chances).topk(count, dim=1).indices

    def scores(self, chances: Tensor) -> Tensor:
        """[P, Q] how much each is worth asking."""
        raise NotImplementedError


class AnyQuestions(Queries):
    """As they come.

    Shapes: chances [P, M, Q, O] -> [P, count].

    >>> AnyQuestions().pick(torch.rand(1, 3, 5, 2), torch.rand(1, 5, 4), 2).tolist()
    [[0, 1]]
    """

    wide: ClassVar[bool] = False

    def pick(self, chances: Tensor, shown: Tensor, count: int) -> Tensor:
        return torch.arange(count, device=chances.device).expand(len(chances), -1)


class MostDisagreed(Queries):
    """Those of which the models say most different things: the variance of their chances, summed over options.

    Shapes: chances [P, M, Q, O] -> [P, Q].

    >>> chances = torch.tensor([[[[0.5, 0.5], [0.9, 0.1]], [[0.5, 0.5], [0.1, 0.9]]]])
    >>> [round(x, 3) for x in MostDisagreed().scores(chances)[0].tolist()]
    [0.0, 0.32]
    """

    def scores(self, chances: Tensor) -> Tensor:
        return chances.var(1, correction=0).sum(-1)


class MostUncertain(Queries):
    """Those whose answer is least certain: the entropy of the mean of the models' chances.

    Shapes: chances [P, M, Q, O] -> [P, Q].

    >>> chances = torch.tensor([[[[0.5, 0.5], [0.9, 0.1]], [[0.5, 0.5], [0.1, 0.9]]]])
    >>> [round(x, 4) for x in MostUncertain().scores(chances)[0].tolist()]  # log 2 both
    [0.6931, 0.6931]
    """

    def scores(self, chances: Tensor) -> Tensor:
        return entropy(chances.mean(1))


class MostInformative(Queries):
    """Those whose answer says most about which model is right: the entropy of the mean, less the models' mean entropy.

    Shapes: chances [P, M, Q, O] -> [P, Q].

    >>> chances = torch.tensor([[[[0.5, 0.5], [0.9, 0.1]], [[0.5, 0.5], [0.1, 0.9]]]])
    >>> [round(x, 4) for x in MostInformative().scores(chances)[0].tolist()]
    [0.0, 0.3681]
    """

    def scores(self, chances: Tensor) -> Tensor:
        return entropy(chances.mean(1)) - entropy(chances).mean(1)


class FarthestFirst(Queries):
    """Those most unlike each other: the first, then always the one whose nearest is farthest (greedy k-centre).

    Shapes: shown [P, Q, F] -> [P, count].

    >>> shown = torch.tensor([[[0.0], [1.0], [9.0], [8.0]]])
    >>> FarthestFirst().pick(torch.rand(1, 3, 4, 2), shown, 3).tolist()
    [[0, 2, 1]]
    """

    def pick(self, chances: Tensor, shown: Tensor, count: int) -> Tensor:
        found = [torch.zeros(len(shown), 1, dtype=torch.long, device=shown.device)]
        nearest = torch.full_like(shown[..., 0], torch.inf)
        for _ in range(count - 1):
            centre = shown.take_along_dim(found[-1][..., None], 1)
            nearest = torch.minimum(nearest, (shown - centre).square().sum(-1))
            found.append(nearest.argmax(1, keepdim=True))
        return torch.cat(found, 1)


def entropy(chances: Tensor) -> Tensor:
    """[...] in nats, of chances [..., O].

    >>> round(entropy(torch.tensor([0.25, 0.75, 0.0])).item(), 4)
    0.5623
    """
    found: Tensor = torch.special.entr(chances).sum(-1)
    return found
