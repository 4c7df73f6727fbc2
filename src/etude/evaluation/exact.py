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
from etude.loops.bed import Bed
from etude.loops.credit import credited, kept, loss, scored
from etude.policies.tabular import SoftmaxTree


def every_group(
    bed: Bed, size: int, behaviour: SoftmaxTree | None = None, prompt: int = 0
) -> Iterator[tuple[Tensor, TokenBatch, Tensor]]:  # fmt: skip
    """Probability, batch and responses of every group of `size` ordered samples of one prompt.

    Args:
        behaviour: the policy that samples; None: the bed's own. There are Y^size groups.
    """
    tree = behaviour or bed.policy
    table = tree.table().detach()
    logp = tree.logp(table)[0, prompt]
    asked = torch.full((size,), prompt)
    for chosen in product(range(len(tree.tokens)), repeat=size):
        response = torch.tensor(chosen)
        batch = bed.batch(asked, response, tree.rows(0, asked, response, table))
        yield logp[response].sum().exp(), batch, response


def expected_gradient(
    method: Method, bed: Bed, size: int, *, behaviour: SoftmaxTree | None = None, reference: SoftmaxTree | None = None,
    prompt: int = 0, member: int = 0,
) -> Tensor:  # fmt: skip
    """E[gradient of the method's loss by the table of logits], [X, N, V], over every group of `size` samples.

    Each group is one minibatch, so what a method averages over the batch it averages over this group. Ascent is minus
    this. The method's parts see `behaviour`'s samples and the bed's policy as it is now.

    Args:
        behaviour: the policy that sampled; None: the bed's own, strictly on-policy.
        reference: the policy of 'reference_logp'; None: the behaviour policy.
    """
    bound, table = complete_token(method).bind(), bed.policy.logits[member]
    held = (reference or behaviour or bed.policy).table().detach()
    needs = method.needs("objective", "regularizers", "token_weights")
    total, context = torch.zeros_like(table), Context(None, bed.policy, Stream(0), max_tokens=bed.policy.length)
    for chance, batch, response in every_group(bed, size, behaviour, prompt):
        batch.reference_logp = bed.policy.rows(0, batch.group, response, held).logp
        batch = kept(bound, scored(bound, bed.shown(bound, batch, member), context))
        batch = credited(bound, batch)
        if not len(batch):
            continue
        assert batch.response is not None
        said = bed.policy.rows(member, batch.group, batch.response, bed.policy.table(), needs)
        found = loss(bound, batch, said, bed.policy.length)
        if found.requires_grad:
            total += chance * torch.autograd.grad(found, table)[0]
    return total


def gradient(value: Tensor, policy: SoftmaxTree, member: int = 0) -> Tensor:
    """Exact gradient [X, N, V] of something computed from the policy's `probs()` or `logp()`."""
    return torch.autograd.grad(value, policy.logits[member])[0]
