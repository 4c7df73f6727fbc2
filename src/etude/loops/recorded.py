"""What the sampler recorded of every token, as tensors of a batch."""

from __future__ import annotations

import torch

from etude.core.batches import TokenBatch


def recorded_entropies(batch: TokenBatch) -> torch.Tensor | None:
    """[B, T] entropies that the sampler recorded; None unless it did so for every action token."""
    flat = [h for e in batch.episodes for s in e.segments for h in s.info.get("entropy", ())]
    return _spread(torch.tensor(flat, device=batch.tokens.device, dtype=batch.behaviour_logp.dtype), batch)


def recorded_hidden(batch: TokenBatch) -> torch.Tensor | None:
    """[B, T, H] states that the sampler recorded; None unless it did so for every action token."""
    states = [s.info.pop("hidden", None) for e in batch.episodes for s in e.segments if any(s.action_mask)]
    if not states or any(h is None for h in states):
        return None
    return _spread(torch.cat(states), batch)


def _spread(flat: torch.Tensor, batch: TokenBatch) -> torch.Tensor | None:
    """[N, ...] values of the action tokens as [B, T, ...]; None if some belong to another context, or are missing."""
    mask = batch.action_mask
    if len(flat) != int(mask.sum()) or not torch.equal(batch.on_policy, batch.sampled):
        return None
    out = flat.new_zeros(*mask.shape, *flat.shape[1:])
    out[mask] = flat
    return out
