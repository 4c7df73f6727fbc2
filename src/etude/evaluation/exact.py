"""Expectations by enumeration: what a method does on average over every group that it could have sampled."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.complete import complete_token
from etude.core.method import Method
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.loops.bandit import Bandit
from etude.loops.credit import credited, kept, loss, scored
from etude.policies.tabular import SoftmaxTree


def every_group(
    bandit: Bandit, size: int, behaviour: SoftmaxTree | None = None, prompt: int = 0
) -> Iterator[tuple[Tensor, TokenBatch, Tensor]]:  # fmt: skip
    """Probability, batch and responses of every group of `size` ordered samples of one prompt.

    Args:
        behaviour: the policy that samples; None: the bandit's own. There are Y^size groups.
    """
    tree = behaviour or bandit.policy
    table = tree.table().detach()
    logp = tree.logp(table)[0, prompt]
    asked = torch.full((size,), prompt)
    for chosen in product(range(len(tree.tokens)), repeat=size):
        response = torch.tensor(chosen)
        batch = bandit.batch(asked, response, tree.rows(0, asked, response, table))
        yield logp[response].sum().exp(), batch, response


def expected_gradient(
    method: Method, bandit: Bandit, size: int, *, behaviour: SoftmaxTree | None = None,
    reference: SoftmaxTree | None = None, proximal: SoftmaxTree | None = None, prompt: int = 0, member: int = 0,
) -> Tensor:  # fmt: skip
    """E[gradient of the method's loss by the table of logits], [X, N, V], over every group of `size` samples.

    Each group is one minibatch, so what a method averages over the batch it averages over this group. Ascent is minus
    this. The method's parts see `behaviour`'s samples and the bandit's policy as it is now.

    Args:
        behaviour: the policy that sampled; None: the bandit's own, strictly on-policy.
        reference: the policy of 'reference_logp'; None: the behaviour policy.
        proximal: the policy of 'proximal_logp'; None: the bandit's own, as when a step begins.
    """
    bound, table = complete_token(method).bind(), bandit.policy.logits[member]
    held = (reference or behaviour or bandit.policy).table().detach()
    begun = (proximal or bandit.policy).table().detach()
    needs = method.needs("objective", "regularizers", "token_weights")
    total, context = torch.zeros_like(table), Context(None, bandit.policy, Stream(0), max_tokens=bandit.policy.length)
    for chance, batch, response in every_group(bandit, size, behaviour, prompt):
        batch.reference_logp = bandit.policy.rows(0, batch.group, response, held).logp
        batch.proximal_logp = bandit.policy.rows(0, batch.group, response, begun).logp
        batch = kept(bound, scored(bound, bandit.shown(bound, batch, member), context))
        batch = credited(bound, batch)
        if not len(batch):
            continue
        assert batch.response is not None
        policy = bandit.policy.rows(member, batch.group, batch.response, bandit.policy.table(), needs)
        minimised = loss(bound, batch, policy, bandit.policy.length)
        if minimised.requires_grad:
            total += chance * torch.autograd.grad(minimised, table)[0]
    return total


def gradient(value: Tensor, policy: SoftmaxTree, member: int = 0) -> Tensor:
    """Exact gradient [X, N, V] of something computed from the policy's `probs()` or `logp()`."""
    return torch.autograd.grad(value, policy.logits[member])[0]
