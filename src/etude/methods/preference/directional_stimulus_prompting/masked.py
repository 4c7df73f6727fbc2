"""NLPO's masked policy: tokens within the likeliest of a lagging copy, and a divergence that does not see the set."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from etude.core.batches import TokenBatch
from etude.core.episodes import Episode, Problem
from etude.core.fields import Count, Positive, PositiveProbability
from etude.core.part import Need
from etude.core.slots import Context
from etude.core.worlds import World
from etude.experience.groups import Groups
from etude.policies.sampling import Sampling, truncate
from etude.policies.texts.likelihood import rows_logp
from etude.policies.texts.models import CurrentPolicy
from etude.rewards.kl import KLPenalty

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from etude.policies.conversation import Conversation
    from etude.policies.language import LanguagePolicy


class MaskedGroups(Groups):
    """Groups in which a token is drawn from the smallest set of mass p under a copy of the policy that lags (NLPO).

    The copy is the policy as it was at the last multiple of `every` steps. Its set differs from place to place and not
    from update to update, and rows remember it (`TokenBatch.allowed`): log-probabilities, in sampling and in training,
    are those of pi over the set, log pi(y) - log pi(set), so a ratio begins at 1. Tokens that end a completion are in
    every set. With `mask` = 1 these are `groups`. Masked completions are sampled in this process.

    Args:
        mask: p, the mass that is kept.
        every: steps until the copy is taken anew.

    >>> MaskedGroups(size=4, mask=0.9).truncates_distribution  # as training sees the same distribution
    False
    """

    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})
    mask: PositiveProbability = 0.9
    every: Count = 20

    def initial_state(self) -> dict[str, Any]:
        return {"taken": -1, "weights": {}}

    def sampling(self, context: Context) -> Sampling:
        how = super().sampling(context)
        if self.mask == 1:
            return how
        return dataclasses.replace(how, within=Nucleus(self.lagging(context), self.mask))

    def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        here = context if self.mask == 1 else dataclasses.replace(context, samplers=None)
        return super().collect(problems, here)

    def lagging(self, context: Context) -> LanguagePolicy:
        """The copy of the policy that says which tokens may come, taken anew where it is time."""
        from etude.policies.language import LanguagePolicy

        policy, due = context.policy, context.step - context.step % self.every
        if self.state["taken"] < due:
            weights = {k: p.detach().clone() for k, p in policy.masters.whole().items()}
            self.state.update(taken=due, weights=weights)
        if self.made.get("taken") != self.state["taken"]:
            model = copy.deepcopy(policy.model).requires_grad_(False).eval()
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if name in self.state["weights"]:
                        parameter.copy_(self.state["weights"][name])
            lagging = LanguagePolicy(model, policy.tokenizer, shadow=False)
            self.made.update(taken=self.state["taken"], lagging=lagging)
        found: LanguagePolicy = self.made["lagging"]
        return found


class Nucleus:
    """Lets through what is in the smallest set of mass p of a policy, and what ends a completion."""

    def __init__(self, policy: LanguagePolicy, mass: float) -> None:
        self.policy, self.mass = policy, mass

    def begin(self, rows: Sequence[Sequence[int]], room: int) -> NucleusReader:
        conversation = self.policy.converse()
        return NucleusReader(self, conversation, conversation.open(rows), room)


class NucleusReader:
    """Rows as the policy reads them whose sets count."""

    def __init__(self, nucleus: Nucleus, conversation: Conversation, handles: Sequence[int], room: int) -> None:
        self.nucleus, self.conversation, self.handles, self.room = nucleus, conversation, handles, room

    def allowed(self, rows: np.ndarray) -> Tensor:
        logits = self.conversation.following([self.handles[i] for i in rows], self.room)
        found = truncate(logits, Sampling(top_p=self.nucleus.mass)) > -torch.inf
        found[:, self.nucleus.policy.end_ids] = True
        return found

    def said(self, rows: np.ndarray, tokens: Tensor) -> None:
        self.conversation.extend([self.handles[i] for i in rows], tokens[:, None].tolist())


class GentleKLPenalty(KLPenalty):
    """As `KLPenalty`, of the whole distribution, with a coefficient that changes by a fiftieth of itself at most.

        e = clip(KL / target - 1, -0.2, 0.2),    coefficient <- coefficient (1 + 0.1 e)

    for the next batch, KL the mean over its tokens of log pi - log reference. Where tokens were drawn within a set, pi
    is asked once more without it, so that the set pays for nothing.

    Args:
        coefficient: where it begins.
        target: nats of a token.

    Shapes: [B, T], 0 outside the action mask; nats times the coefficient.

    A token that is off by twice the target:

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(behaviour_logp=torch.tensor([[-1.0]]), reference_logp=torch.tensor([[-2.0]]))
    >>> rows.action_mask, part = torch.tensor([[True]]), GentleKLPenalty(coefficient=0.5, target=0.5).bind()
    >>> part.shape(rows).tolist(), part.state["coefficient"]
    ([[-0.5]], 0.51)
    """

    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})
    needs: ClassVar[frozenset[Need]] = frozenset({Need.REFERENCE_LOGP})
    coefficient: Positive = 0.005
    target: Positive = 0.5

    def initial_state(self) -> dict[str, Any]:
        return {"coefficient": self.coefficient}

    def shape_in(self, batch: TokenBatch, context: Context) -> Tensor:
        if batch.allowed is None and batch.tilts is None:
            return self.shape(batch)
        free = batch.replace(allowed=None, tilts=None)
        return self.shape(free.replace(behaviour_logp=rows_logp(CurrentPolicy(), context.policy, free)))

    def shape(self, batch: TokenBatch) -> Tensor:
        assert batch.reference_logp is not None
        coefficient: float = self.state["coefficient"]
        away = (batch.behaviour_logp - batch.reference_logp) * batch.action_mask
        mean = float(away.double().sum()) / max(1, int(batch.action_mask.sum()))
        self.state["coefficient"] = coefficient * (1 + 0.1 * min(max(mean / self.target - 1, -0.2), 0.2))
        return -coefficient * away
