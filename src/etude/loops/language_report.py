"""What a step of the token loop reports: means over its episodes, and the episodes themselves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from etude.advantages.group import episode_sum
from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.episodes import FIRST, Episode
from etude.core.meters import taken, total
from etude.core.slots import TokenExperience
from etude.core.task import LanguageTask
from etude.regularizers.kl import kl_estimate
from etude.rewards.testing import ends


def describe(
    batches: Sequence[TokenBatch], task: LanguageTask, samples: bool, dropped: Mapping[str, int]
) -> dict[str, float]:
    """Means over every scored episode, whether or not a filter keeps it; `samples`: whether the policy said them.

    An episode of several rows counts once, its length over all of them. Auxiliary rows (what was said about an attempt,
    not an attempt) and those that go on in a later step (`unfinished` is their share) only count as rows.
    """
    lost, seen = {k: float(v) for k, v in dropped.items()}, batches
    batches = [b.per_episode() for b in batches]
    rows = [(e, own) for b in batches for e, own in zip(b.episodes, b.sampled.tolist())]
    attempts = [(own or not samples) and not (e.auxiliary or e.unfinished) for e, own in rows]
    episodes = [e for (e, _), counts in zip(rows, attempts) if counts]
    lost |= _waiting(seen, samples)
    if not episodes:
        return lost
    length = torch.cat([_lengths(b) for b in seen]).float().mean()
    if not samples:
        return {"rows": float(len(rows)), "completion_length": float(length), **lost}
    metrics = {
        "reward": float(torch.cat([b.scores for b in batches])[torch.tensor(attempts)].mean()),
        "accuracy": sum(map(task.success, episodes)) / len(episodes),
        "completion_length": float(length),
        "entropy_estimate": _surprise(seen),
        "cut": sum(e.stop.cut for e, _ in rows) / len(rows),
        "truncated": sum(e.stop.truncated for e, _ in rows) / len(rows),
        "rows": float(sum(map(len, seen))),
        **lost,
    }
    metrics |= _spread(torch.cat([b.scores for b in batches])[torch.tensor(attempts)]) | _under_reference(seen)
    if zeroed := sum("zeroed" in e.info for e, _ in rows):
        metrics["zeroed_reward"] = float(zeroed)
    if not all(own for _, own in rows):
        metrics["written"] = 1 - sum(own for _, own in rows) / len(rows)
    for name in dict.fromkeys(n for e in episodes for n in e.scores):
        paid = [e.scores[name] for e in episodes if name in e.scores]  # those that the component applies to
        metrics[f"reward/{name}"] = sum(paid) / len(paid)
    told = [task.metrics(e.whole) for e in episodes]
    for name in dict.fromkeys(n for numbers in told for n in numbers):
        said = [numbers[name] for numbers in told if name in numbers]  # those that the task has it of
        metrics[f"task/{name}"] = sum(said) / len(said)
    return metrics | ends(e.info for e in episodes) | taken([e.whole for e in episodes])


def by_player(batches: Sequence[TokenBatch], task: LanguageTask) -> dict[str, float]:
    """Means over the episodes of each of several players, named after it; {} where one plays alone."""
    found, rows = dict[str, float](), [b.per_episode() for b in batches if len(b)]
    if len({b.episodes[0].player for b in rows}) < 2:
        return {}
    for whole, batch in zip((b for b in batches if len(b)), rows):
        name, episodes = batch.episodes[0].player, batch.episodes
        found[f"{name}/reward"] = float(batch.scores.mean())
        found[f"{name}/accuracy"] = sum(map(task.success, episodes)) / len(episodes)
        found[f"{name}/completion_length"] = float(_lengths(whole).float().mean())
        found[f"{name}/rows"] = float(len(whole))
    return found


def _lengths(batch: TokenBatch) -> Tensor:
    """[episodes] tokens that the policy said in each of those that have ended, over its rows."""
    once = batch.once()
    return batch.said[batch.finished].sum(1) if once is None else episode_sum(batch.said.sum(1), batch)[once[0]]


def _waiting(batches: Sequence[TokenBatch], samples: bool) -> dict[str, float]:
    """What a sampler that holds all rows at once waits for: the longest of them.

    `decoding_iterations`: its tokens of this step. `idle`: the share of places that are empty by then. `unfinished`:
    the share of rows that go on in a later step, where there are any.
    """
    drawn = [b.action_counts[b.sampled] for b in batches] if samples else []
    if not sum(map(len, drawn)):
        return {}
    tokens = torch.cat(drawn).double()
    found = {"decoding_iterations": float(tokens.max()), "idle": 1 - float(tokens.mean() / tokens.max())}
    if any(b.unfinished is not None for b in batches):
        found["unfinished"] = 1 - float(torch.cat([b.finished for b in batches]).double().mean())
    return found


def second_looks(batches: Sequence[TokenBatch], stages: int) -> dict[str, float]:
    """Which share of a step's rows comes from each stage of a second look."""
    found = [e.info.get("look") for b in batches for e in b.episodes]
    return {f"second_look/{stage}": found.count(stage) / len(found) for stage in range(stages)}


def learned_answers(batches: Iterable[TokenBatch]) -> dict[str, float]:
    """Tokens of answers that were given, not sampled, on rows that are learned from; nothing where there are none."""
    given = sum(float(b.action_counts[~b.sampled & (b.weights > 0)].sum()) for b in batches)
    return {"given_tokens": given} if given else {}


def _surprise(batches: Sequence[TokenBatch]) -> float:
    """Mean of -log p of the tokens that were sampled, in nats: an unbiased estimate of what they were drawn from."""
    drawn = [b.behaviour_logp[b.action_mask & b.sampled[:, None]] for b in batches]
    return -float(torch.cat(drawn).mean())


def _spread(scores: Tensor) -> dict[str, float]:
    """The quantiles at 5 % and 95 % of what episodes were paid: where rewards collapse, they meet."""
    low, high = torch.quantile(scores.double(), torch.tensor([0.05, 0.95], dtype=torch.float64, device=scores.device))
    return {"reward_p05": float(low), "reward_p95": float(high)}


def _under_reference(batches: Sequence[TokenBatch]) -> dict[str, float]:
    """exp of the mean -log p of the sampled tokens under the reference, where the step has asked it."""
    found = [b.reference_logp[b.action_mask & b.sampled[:, None]] for b in batches if b.reference_logp is not None]
    said = torch.cat(found) if found else torch.zeros(0)
    return {"reference_perplexity": math.exp(min(-float(said.mean()), 700.0))} if len(said) else {}


def divergences(batch: TokenBatch, policy: TokenLogProbs, experience: TokenExperience) -> dict[str, Tensor]:
    """[B, T] how far the policy is from others, in nats: k3 estimates from what the step has computed anyway.

    `behaviour_kl`: KL(pi_old || pi) from the policy that sampled, without one where that sampled from a truncated
    distribution. `reference_kl`: KL(pi || reference), from the starting weights unless the method moves its reference;
    without one if the method has none. Nothing where the tokens are not the policy's own samples.
    """
    logp, found = policy.logp.detach(), dict[str, Tensor]()
    if not experience.samples:
        return found
    if not experience.truncates_distribution:
        found["behaviour_kl"] = kl_estimate(batch.behaviour_logp, logp, "k3")
    if batch.reference_logp is not None:
        found["reference_kl"] = kl_estimate(logp, batch.reference_logp, "k3")
    return found


def record(episode: Episode, batch: TokenBatch, row: int) -> dict[str, Any]:
    """One line of `episodes.jsonl`."""
    advantage = batch.advantages[row][batch.action_mask[row]].mean() if batch.advantages is not None else 0.0
    used = {"used": total(episode)._asdict()} if any("used" in s.info for s in episode.segments) else {}
    return {
        "id": episode.problem.id, "level": episode.problem.level, "group": int(batch.group[row]),
        "segments": [{"role": s.role, "text": s.text} for s in episode.segments],
        "scores": episode.scores, "reward": float(batch.scores[row]), "advantage": float(advantage),
        "stop": str(episode.stop), **({} if episode.player == FIRST else {"player": episode.player}), **used,
    }  # fmt: skip
