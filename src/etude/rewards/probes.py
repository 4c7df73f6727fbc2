"""What texts are worth, from completions that were sampled to find out (`Episode.probe`)."""

from __future__ import annotations

import torch

from etude.core.batches import TokenBatch


def apart(batch: TokenBatch) -> tuple[TokenBatch, TokenBatch | None]:
    """The rows that are learned from, and the probes among them; None if the experience samples none."""
    if not any("prefixes" in e.info or e.probe for e in batch.episodes):
        return batch, None
    asked = torch.tensor([e.probe for e in batch.episodes], device=batch.tokens.device)
    return batch.rows((~asked).nonzero()[:, 0]), batch.rows(asked.nonzero()[:, 0])


def with_values(batch: TokenBatch, probes: TokenBatch) -> TokenBatch:
    """The rows with `sampled_values` [B, T]: the mean score of the probes of a text, at the token that follows it.

    `episode.info` has the texts: `prefix` of a probe is the number of its own, `prefixes` of a row has [token, number]
    of each that is a beginning of it. A text of which all probes were lost has no value.
    """
    found: dict[int, list[float]] = {}
    for episode, score in zip(probes.episodes, probes.scores.double().tolist()):
        found.setdefault(episode.info["prefix"], []).append(score)
    values = torch.full_like(batch.rewards, torch.nan)
    for row, episode in enumerate(batch.episodes):
        for place, number in episode.info.get("prefixes", ()):
            if scores := found.get(number):
                values[row, place] = sum(scores) / len(scores)
    return batch.replace(sampled_values=values)
