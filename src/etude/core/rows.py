"""From episodes to a batch of training rows, and from a batch to minibatches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.episodes import Episode, Segment
from etude.core.errors import InvariantError


def to_batch(
    episodes: Sequence[Episode], pad: int, temperature: float, device: torch.device,
    players: Sequence[str] = ("policy",),
) -> TokenBatch:  # fmt: skip
    """One row per episode, its whole history, or per view that was sampled from; padded on the right.

    Rewards are placed later. Rows of an episode share its number, group and draw; of a truncated one only the last goes
    on with a value.

    Args:
        players: who may have said something; `batch.player` is a place among them.

    Raises InvariantError if an episode's tokens, mask and log-probabilities do not line up (invariant 3), or its player
    is none of these.
    """
    numbers = [n for n, e in enumerate(episodes) for _ in e.views or (e,)]
    ends = [n != following for n, following in zip(numbers, [*numbers[1:], -1])]
    episodes = [row for e in episodes for row in e.rows]
    for episode in episodes:
        check_aligned(episode)
        if episode.player not in players:
            raise InvariantError(
                f"An episode for problem {episode.problem.id!r} is by {episode.player!r}, and the players are "
                f"{', '.join(players)}."
            )
    width = max(len(e.tokens) for e in episodes)
    shape = (len(episodes), width)
    tokens, real = np.full(shape, pad, np.int64), np.zeros(shape, bool)
    action, logp, version = np.zeros(shape, bool), np.zeros(shape, np.float32), np.zeros(shape, np.int64)
    for row, episode in enumerate(episodes):
        size = len(episode.tokens)
        tokens[row, :size], real[row, :size] = episode.tokens, True
        action[row, :size] = [m for s in episode.segments for m in s.action_mask]
        logp[row, :size] = [p for s in episode.segments for p in s.behaviour_logp]
        version[row, :size] = [v for s in episode.segments for v in s.versions]
    action[:, 0] = False  # nothing predicts the first token
    unfinished = [e.unfinished for e in episodes]
    zeros = torch.zeros(len(episodes), device=device)
    return TokenBatch(
        tokens=torch.from_numpy(tokens).to(device),
        attention_mask=torch.from_numpy(real).to(device),
        action_mask=torch.from_numpy(action).to(device),
        behaviour_logp=torch.from_numpy(logp * action).to(device),
        rewards=torch.zeros(shape, device=device),
        group=torch.tensor([e.group for e in episodes], device=device),
        weights=torch.ones_like(zeros),
        scores=zeros,
        truncated=torch.tensor([e.stop.truncated and end for e, end in zip(episodes, ends)], device=device),
        written=torch.tensor([e.written for e in episodes], device=device),
        elsewhere=torch.tensor([e.elsewhere for e in episodes], device=device),
        unfinished=torch.tensor(unfinished, device=device) if any(unfinished) else None,
        earlier=_earlier(episodes, action, device),
        step=_step(episodes, action, device),
        allowed=_allowed(episodes, action, device),
        tilts=_tilts(episodes, action, device),
        voices=_voices(episodes, action, device),
        draw=torch.tensor([e.draw.key if e.draw else 0 for e in episodes], device=device),
        episode=torch.tensor(numbers, device=device),
        player=torch.tensor([players.index(e.player) for e in episodes], device=device),
        version=torch.from_numpy(version * action).to(device),
        episodes=list(episodes),
        temperature=temperature,
    )


def _earlier(episodes: Sequence[Episode], action: np.ndarray, device: torch.device) -> Tensor | None:
    """[B, T] tokens that were sampled in earlier steps, as their segments say (`info["earlier"]`)."""
    if not any(s.info.get("earlier") for e in episodes for s in e.segments):
        return None
    found = np.zeros_like(action)
    for row, episode in enumerate(episodes):
        begin = 0
        for s in episode.segments:
            found[row, begin : begin + s.info.get("earlier", 0)] = True
            begin += len(s.tokens)
    found[:, 0] = False
    return torch.from_numpy(found).to(device)


def _step(episodes: Sequence[Episode], action: np.ndarray, device: torch.device) -> Tensor | None:
    """[B, T] number of each token's step, as segments say (`info["step"]`), -1 outside; None if none says so."""
    if not any("step" in s.info for e in episodes for s in e.segments):
        return None
    found = np.full(action.shape, -1, np.int64)
    for row, episode in enumerate(episodes):
        numbers = [n for s in episode.segments for n in s.info.get("step", [-1] * len(s.tokens))]
        found[row, : len(numbers)] = numbers
    return torch.from_numpy(np.where(action, found, -1)).to(device)


def _allowed(episodes: Sequence[Episode], action: np.ndarray, device: torch.device) -> Tensor | None:
    """[B, T, V] tokens that could have been drawn, as segments say of the last ones (`info["allowed"]`); else all."""
    told = [s.info["allowed"] for e in episodes for s in e.segments if "allowed" in s.info]
    if not told:
        return None
    found = torch.ones(*action.shape, told[0].shape[1], dtype=torch.bool, device=device)
    for row, episode in enumerate(episodes):
        end = 0
        for s in episode.segments:
            end += len(s.tokens)
            if (own := s.info.get("allowed")) is not None:
                found[row, end - len(own) : end] = own
    return found


def _tilts(episodes: Sequence[Episode], action: np.ndarray, device: torch.device) -> Tensor | None:
    """[B, T, V] what was added to logits, as segments say of the last tokens (`info["tilts"]`), 0 elsewhere."""
    told = [s.info["tilts"] for e in episodes for s in e.segments if "tilts" in s.info]
    if not told:
        return None
    found = torch.zeros(*action.shape, told[0].shape[1], dtype=told[0].dtype, device=device)
    for row, episode in enumerate(episodes):
        end = 0
        for s in episode.segments:
            end += len(s.tokens)
            if (own := s.info.get("tilts")) is not None:
                found[row, end - len(own) : end] = own
    return found


def _voices(episodes: Sequence[Episode], action: np.ndarray, device: torch.device) -> Tensor | None:
    """[B, T] who said each action token, as segments say of the last ones (`info["voices"]`), -1 elsewhere."""
    if not any("voices" in s.info for e in episodes for s in e.segments):
        return None
    found = np.full(action.shape, -1, np.int64)
    for row, episode in enumerate(episodes):
        end = 0
        for s in episode.segments:
            end += len(s.tokens)
            own = s.info.get("voices", ())
            found[row, end - len(own) : end] = own
    return torch.from_numpy(found).to(device)


def read_behind_turns(episode: Episode, pad: int) -> Episode:
    """The episode with one action after each turn, the token behind the last that the policy said in it.

    What a model says where it predicts that token rests on all up to the turn's end: that is where a scorer of turns is
    read. Behind an episode that ends with a turn stands `pad`. Tokens and texts are as they were; what a turn was paid
    stands on the segment of its action.

    >>> said = Segment("assistant", tokens=[6, 7], action_mask=[1, 1], behaviour_logp=[-1.0, -1.0], reward=0.5)
    >>> told = Segment("user", tokens=[8], action_mask=[0], behaviour_logp=[0.0])
    >>> read = read_behind_turns(Episode(None, [said, told, said]), pad=0)
    >>> [(s.action_mask, s.reward) for s in read.segments]
    [([0, 0], 0.0), ([1], 0.5), ([0, 0], 0.0), ([1], 0.5)]
    """
    segments, waiting, owed = list[Segment](), False, 0.0
    for s in episode.segments:
        mask, paid = [0] * len(s.tokens), 0.0
        if waiting and mask:
            mask[0], paid, waiting, owed = 1, owed, False, 0.0
        owed += s.reward
        if any(s.action_mask):
            behind = len(mask) - list(reversed(s.action_mask)).index(1)
            waiting = behind == len(mask)
            if not waiting:
                mask[behind], paid, owed = 1, paid + owed, 0.0
        segments.append(replace(s, action_mask=mask, behaviour_logp=[0.0] * len(mask), reward=paid))
    if waiting:
        segments.append(Segment("user", "", [pad], [1], [0.0], reward=owed))
    return replace(episode, segments=segments)


def check_aligned(episode: Episode) -> None:
    """Tokens, action mask and log-probabilities of every segment have one entry per token."""
    for turn, s in enumerate(episode.segments):
        if not len(s.tokens) == len(s.action_mask) == len(s.behaviour_logp):
            raise InvariantError(
                f"Segment {turn} of an episode for problem {episode.problem.id!r} has {len(s.tokens)} tokens, "
                f"{len(s.action_mask)} mask entries and {len(s.behaviour_logp)} log-probabilities: something replaced "
                "the sampled tokens (text that was decoded and encoded again?)."
            )


def last_action(batch: TokenBatch) -> Tensor:
    """[B] index of each row's last action token."""
    return batch.action_mask.shape[1] - 1 - batch.action_mask.flip(1).int().argmax(1)


def reaching_on(batch: TokenBatch, context: int) -> tuple[TokenBatch, Tensor]:
    """Rows [B, T + 1] in which truncated ones have one action token more, and [B, T + 1] True on that.

    What is said of a text is read where its next token would be predicted. After a full context there is no such place.
    """
    pad = torch.nn.functional.pad
    goes_on = batch.truncated & (batch.lengths < context)
    after = torch.nn.functional.one_hot(batch.lengths, batch.tokens.shape[1] + 1).bool() & goes_on[:, None]
    tokens, real, action = (pad(x, (0, 1)) for x in (batch.tokens, batch.attention_mask, batch.action_mask))
    longer = batch.replace(
        tokens=tokens, attention_mask=real | after, action_mask=action | after, allowed=None, tilts=None
    )  # fmt: skip
    return longer, after


def concatenate(batches: Sequence[TokenBatch]) -> TokenBatch:
    """Rows of several batches as one; groups and episodes are renumbered so that they stay apart."""
    if len(batches) == 1:
        return batches[0]
    width = max(b.tokens.shape[1] for b in batches)

    def wide(x: Tensor) -> Tensor:
        if x.dim() == 1:
            return x
        return torch.nn.functional.pad(x, [0, 0] * (x.dim() - 2) + [0, width - x.shape[1]])

    first = batches[0]
    changes = {k: torch.cat([wide(b._tensors()[k]) for b in batches]) for k in first._tensors()}
    changes["group"] = _apart([b.group for b in batches])
    if "episode" in changes:
        changes["episode"] = _apart([b._tensors()["episode"] for b in batches])
    offers = {k: torch.cat([wide(b.offers[k]) for b in batches]) for k in first.offers}
    return first.replace(**changes, offers=offers, episodes=[e for b in batches for e in b.episodes])


def _apart(numbers: Sequence[Tensor]) -> Tensor:
    """Numbers of several batches, none of them in two."""
    shifted, offset = [], 0
    for each in numbers:
        shifted.append(each + offset)
        offset += int(each.max()) + 1
    return torch.cat(shifted)


def split_groups(batch: TokenBatch, pieces: int, order: np.random.Generator | None) -> list[Tensor]:
    """Row indices of `pieces` minibatches that keep groups whole, in a random order if a generator is given."""
    groups, whose = torch.unique(batch.group, return_inverse=True)
    places = torch.arange(len(batch), device=whose.device)
    first = torch.full_like(groups, len(batch)).scatter_reduce(0, whose, places, "amin")
    groups = groups[first.argsort()]  # as their rows stand: their numbers are only names
    if order is not None:
        groups = groups[torch.from_numpy(order.permutation(len(groups))).to(groups.device)]
    chosen = [g for g in groups.tensor_split(min(pieces, len(groups))) if len(g)]
    return [torch.isin(batch.group, g).nonzero()[:, 0] for g in chosen]


def split_rows(batch: TokenBatch) -> list[Tensor]:
    """Row indices of two halves that have the same groups: every other row of each; one half if no group has two."""
    _, whose = torch.unique(batch.group, return_inverse=True)
    order = torch.argsort(whose, stable=True)
    places = torch.arange(len(batch), device=order.device)
    sizes = torch.bincount(whose)
    begins = (sizes.cumsum(0) - sizes)[whose[order]]
    half = torch.empty_like(order).scatter_(0, order, (places - begins) % 2)
    return [rows for k in (0, 1) if len(rows := (half == k).nonzero()[:, 0])]
