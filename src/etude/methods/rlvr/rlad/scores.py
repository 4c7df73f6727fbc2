"""What solutions and hints are paid, and which of them are learned from."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from etude.advantages.group import group_max
from etude.core.batches import TokenBatch
from etude.core.episodes import Episode, Problem
from etude.core.fields import Count
from etude.core.slots import Context, Filter, Reward, TokenReward
from etude.core.worlds import World
from etude.filters.informative import InformativeGroups
from etude.methods.rlvr.rlad.hints import ASKED, IN_VIEW, SHOW, HintedGroups, accuracies, check_texts, hinted
from etude.policies.texts.models import Model, SavedModel

if TYPE_CHECKING:
    from etude.core.method import Method


def in_view(batch: TokenBatch) -> Tensor:
    """[B] whether a row's problem has a hint in view."""
    return torch.tensor([bool(e.problem.info.get(IN_VIEW)) for e in batch.episodes], device=batch.group.device)


class OnlyWithHint(TokenReward):
    """Takes back all that the parts before it paid where no hint is in view: r(x, '', y) = 0, whatever y.

    Shapes: [B, T].

    >>> from types import SimpleNamespace as Rows
    >>> rows = [Episode(Problem("1", "?", info={IN_VIEW: hint})) for hint in ("+*", "")]
    >>> paid = Rows(rewards=torch.tensor([[0.0, 1.0], [0.0, 1.0]]), episodes=rows, group=torch.tensor([0, 1]))
    >>> (paid.rewards + OnlyWithHint().shape(paid)).tolist()
    [[0.0, 1.0], [0.0, 0.0]]
    """

    judges: ClassVar[bool] = False

    def objection(self, method: Method) -> str | None:
        if isinstance(method.slots()["experience"], HintedGroups):
            return None
        return "pays nothing where no hint is in view, and none ever is: choose experience=hinted-groups."

    def shape(self, batch: TokenBatch) -> Tensor:
        return torch.where(in_view(batch)[:, None], 0.0, -batch.rewards)


class InformativeOrBare(InformativeGroups):
    """Drops groups with a hint whose rewards are all equal; those without one stay, which never differ.

    Shapes: scores, group [B] -> weights [B].

    >>> from types import SimpleNamespace as Rows
    >>> rows = [Episode(Problem("1", "?", info={IN_VIEW: hint})) for hint in ("+*", "+*", "", "")]
    >>> rows = Rows(scores=torch.tensor([1.0, 1.0, 0.0, 0.0]), group=torch.tensor([0, 0, 1, 1]), episodes=rows)
    >>> InformativeOrBare().weigh(rows).tolist()
    [0.0, 0.0, 1.0, 1.0]
    """

    def weigh(self, batch: TokenBatch) -> Tensor:
        return torch.where(in_view(batch), super().weigh(batch), 1.0)


class SolvedWith(Reward):
    """r(x, z): the share of a solver's solutions to a problem that are right with the hint in view.

        r(x, z) = 1/k sum_i Acc(y_i, y*),   y_i ~ solver( . | x, z)

    It is unbiased for E[Acc]. A hint that says nothing is worth 0.

    Args:
        solver: who solves; it stays as it is.
        samples: k.
        show: as the solver's own experience has it.

    Raises: ConfigError for a `show` that leaves the problem or the hint out.

    >>> SolvedWith(samples=4).samples
    4
    """

    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})
    solver: Model = SavedModel()
    samples: Count = 4
    show: str = SHOW

    def check(self) -> None:
        check_texts(type(self).__name__, show=self.show)

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float]:
        said = [e.completion.strip() for e in episodes]
        found = self.shares([hinted(asked(e), hint, self.show) for e, hint in zip(episodes, said)], episodes, context)
        return [share if hint else 0.0 for share, hint in zip(found, said, strict=True)]

    def shares(self, problems: Sequence[Problem], episodes: Sequence[Episode], context: Context) -> list[float]:
        """Of each problem, drawn at the address of an episode."""
        draws = [e.draw or context.stream.draw("hint", i) for i, e in enumerate(episodes)]
        solver = self.solver.speaker(context.policy)
        lent = dataclasses.replace(context, max_tokens=context.task.max_tokens)
        found: list[float] = accuracies(solver, problems, draws, self.samples, lent).mean(1).tolist()
        return found


class HelpedBy(SolvedWith):
    """r(x, z) - r(x, ''): what a hint adds to the solver's success at the problem without one.

    The same constant is taken off all hints to a problem, k solutions without a hint that all share, so that which is
    best does not change.

    >>> HelpedBy(samples=4).samples
    4
    """

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float]:
        first = {e.group: e for e in reversed(episodes)}
        bare = self.shares([hinted(asked(e), "") for e in first.values()], list(first.values()), context)
        without = dict(zip(first, bare, strict=True))
        return [with_it - without[e.group] for with_it, e in zip(super().score(episodes, context), episodes)]


class BestThatHelps(Filter):
    """Rejection: of a group the rows that are worth most, where that is more than 0.

    Shapes: scores, group [B] -> weights [B].

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(scores=torch.tensor([0.5, 0.25, -0.5, 0.0]), group=torch.tensor([0, 0, 1, 1]))
    >>> BestThatHelps().weigh(rows).tolist()
    [1.0, 0.0, 0.0, 0.0]
    """

    def weigh(self, batch: TokenBatch) -> Tensor:
        best = group_max(batch.scores, batch.group)
        return ((batch.scores == best) & (batch.scores > 0)).to(batch.scores)


def asked(episode: Episode) -> Problem:
    """The problem that a writer was asked about."""
    return dataclasses.replace(episode.problem, prompt=episode.problem.info[ASKED])
