"""What texts are worth, from completions that go on from them."""

from __future__ import annotations

from statistics import fmean, pstdev

import torch

from etude.core.batches import TokenBatch
from etude.core.rows import last_action


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


def backed_up(batch: TokenBatch) -> TokenBatch:
    """Rows that are nodes of trees, with what each is worth as its score, and what the one above it is worth before it.

    A node is worth what it is paid itself and the mean of those that go on from it, if any do. `episode.info` has the
    `node`'s number, larger than that of the one `above` it, which is -1 for those that go on from the prompt. A node
    below which all was lost is worth nothing known: it has no value before it either, and so gets no credit.

    What is known of a node is noted in its `info["worth"]`: what it is worth (`score`), the mean (`before`) and the
    population deviation (`spread`) of those that go on from the same text. A row of an earlier step comes with that, as
    `info["facts"]`.
    """
    if not any({"node", "facts"} & e.info.keys() for e in batch.episodes):
        return batch
    new = [row for row, e in enumerate(batch.episodes) if "facts" not in e.info]
    places = sorted(new, key=lambda row: -batch.episodes[row].info["node"])
    paid, going = batch.scores.double().tolist(), (~batch.finished).tolist()
    below: dict[tuple[int, int], list[float]] = {}
    ahead = dict[int, float]()
    for row in places:
        e = batch.episodes[row]
        children = below.get((e.group, e.info["node"]), [])
        if children or not going[row]:
            ahead[row] = sum(children) / len(children) if children else 0.0
            below.setdefault((e.group, e.info["above"]), []).append(paid[row] + ahead[row])
    for row in ahead:
        e = batch.episodes[row]
        level = below[e.group, e.info["above"]]
        e.info["worth"] = {"score": paid[row] + ahead[row], "before": fmean(level), "spread": pstdev(level)}
    values, rewards = torch.full_like(batch.rewards, torch.nan), batch.rewards.clone()
    first, last = batch.action_mask.int().argmax(1), last_action(batch)
    for row, e in enumerate(batch.episodes):
        if worth := e.info.get("worth") if row in ahead else e.info.get("facts"):
            values[row, first[row]] = worth["before"]
            rewards[row, last[row]] += ahead.get(row, worth["score"] - paid[row])
    return batch.replace(sampled_values=values, rewards=rewards, scores=rewards.double().sum(1).to(rewards.dtype))
