"""What a limit cut is left out of the loss, and nothing else changes."""

from __future__ import annotations

from typing import Any

import torch

from etude.core.episodes import Episode, Problem, StopReason
from etude.loops.credit import loss
from etude.methods.rlvr.grpo import grpo
from etude.references.frozen import Frozen
from etude.regularizers.kl import KLToReference
from etude.token_weights.cut import UncutCompletions

ENDS = (StopReason.END_OF_TEXT, StopReason.MAX_TOKENS, StopReason.CONTEXT_OVERFLOW, StopReason.MAX_TURNS)


def gradient(make_batch: Any, logprobs: Any, *weights: UncutCompletions) -> torch.Tensor:
    """d loss / d logp [4, 2], of the surrogate and the KL together; the last row has one action token."""
    mask = torch.tensor([[1, 1], [1, 1], [1, 1], [1, 0]])
    episodes = [Episode(Problem(str(i), ""), [], stop=stop) for i, stop in enumerate(ENDS)]
    batch = make_batch(
        mask, episodes=episodes, advantages=torch.tensor([1.0, 2.0, -1.0, 0.5], dtype=torch.float64)[:, None] * mask,
        reference_logp=torch.full((4, 2), -2.0, dtype=torch.float64), group=[0, 0, 0, 0],
    )  # fmt: skip
    method: Any = grpo.replace(regularizers=(KLToReference(),), reference=Frozen(), token_weights=weights)
    policy = logprobs([[-1.0, -1.5], [-0.5, -1.0], [-2.5, -1.0], [-1.0, 0.0]])
    policy.logp.requires_grad_()
    loss(method, batch, policy, 8).backward()
    return policy.logp.grad


def test_cut_completions_add_nothing_and_the_others_what_they_did(make_batch, logprobs) -> None:
    plain, masked = gradient(make_batch, logprobs), gradient(make_batch, logprobs, UncutCompletions())
    assert bool((plain[:3] != 0).all())
    assert bool((masked[1:3] == 0).all())  # out of tokens, out of context
    torch.testing.assert_close(masked[[0, 3]], plain[[0, 3]], rtol=0, atol=0)  # ended, stopped by its environment
