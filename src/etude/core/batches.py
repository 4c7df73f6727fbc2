"""Rows of tokens, and the one legend of shapes; `episodes.py` has what they show, `transitions.py` steps of control.

    B  rows of a batch (one row per view of an episode that was sampled from)
    T  tokens of the longest row; entry t of every [B, T] tensor belongs to token t, the one *predicted*
    V  vocabulary,  H  hidden width,  G  completions per problem,  m  verdicts on a step
    P  members of a population,  E  environments of each,  N  steps of a minibatch,  K  distribution parameters
    M  critics of a member,  A  actions, or choices that there are; K also numbers in which a critic says a value
    C  links of a chain of decisions that makes one action (steps of denoising)

Rewards and advantages are in the task's reward units, log-probabilities in nats, durations in seconds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from etude.core.episodes import Episode

if TYPE_CHECKING:
    import torch
    from torch import Tensor


LOGITS = 1 << 23
"""Logits that `Head.score` holds at a time."""


def pieces(count: int, size: int) -> Iterator[slice]:
    """Slices of at most `size` (at least 1) that cover `count` things, for work whose intermediate values are large.

    >>> list(pieces(5, 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 6, None)]
    """
    size = max(1, size)
    return (slice(start, start + size) for start in range(0, max(1, count), size))


@dataclass(frozen=True)
class Head:
    """The last layer of a policy over tokens: z = (h W' + b) / temperature, p = softmax(z).

    Args:
        weight: W [V, H]; bias: b [V] or None.
        softcap: c of models that cap h W' + b to c tanh(. / c) first.
    """

    weight: Tensor
    bias: Tensor | None = None
    temperature: float = 1.0
    softcap: float | None = None

    def logits(self, hidden: Tensor) -> Tensor:
        """z [..., V] of hidden states [..., H]."""
        z = hidden @ self.weight.T if self.bias is None else hidden @ self.weight.T + self.bias
        z = self.softcap * (z / self.softcap).tanh() if self.softcap else z
        return z / self.temperature

    def residual(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """d log p(token) / d (h W' + b) [N, V]: (onehot(token) - p) / temperature, for hidden [N, H], tokens [N]."""
        z = self.logits(hidden)
        away = -z.softmax(-1)
        away.scatter_add_(1, tokens[:, None], away.new_ones(len(tokens), 1))
        if self.softcap:
            away = away * (1 - (z * self.temperature / self.softcap) ** 2)
        return away / self.temperature

    def score(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """d log p(token) / d h [N, H], without a backward pass and without all logits at a time."""
        import torch

        rows = pieces(len(hidden), LOGITS // len(self.weight))
        return torch.cat([self.residual(hidden[r], tokens[r]) @ self.weight for r in rows])


@dataclass
class TokenLogProbs:
    """What a policy says about a batch.

    Shapes: logp, entropy, values [B, T]; hidden [B, T, H]. Entries outside the action mask are 0.
    `logp` is taken at the temperature that the batch was sampled with.
    `head` maps `hidden` to logits; `learning_rate` is that of the coming optimizer step, for token weights.
    `logits` [B, T, V] are those that each token was chosen by, whatever the temperature.
    `said` is what the networks of learners say that the policy's step trains, by the learners' names, [B, T, ...]; in
    control also the Lagrange multipliers [P, K] of terms that have some, by the terms' names.
    """

    logp: Tensor
    entropy: Tensor | None = None
    values: Tensor | None = None
    hidden: Tensor | None = None
    head: Head | None = None
    learning_rate: float = 0.0
    logits: Tensor | None = None
    said: dict[str, Tensor] = field(default_factory=dict)


@dataclass
class TokenBatch:
    """Rows of tokens with all that is known about them. Every tensor is [B, T] or [B].

    Args:
        tokens: [B, T] ids, padded on the right.
        attention_mask: [B, T] True on real tokens.
        action_mask: [B, T] True on tokens that the policy sampled.
        behaviour_logp: [B, T] log-probability under the distribution that was sampled from.
        rewards: [B, T] each on the last action token of its segment.
        group: [B] which rows are compared with each other.
        episode: [B] number of the episode that a row is a view of: statistics of a group count episodes, losses count
            rows; None: every row is an episode of its own.
        player: [B] who of several players a row trains, numbered as in `to_batch`; None: there is one.
        version: [B, T] version of the policy that sampled each action token, 0 elsewhere; None: the present one.
        draw: [B] int64 key of each row's random numbers (`etude.core.draws`), 0 on written rows.
        weights: [B] how much each row counts (filters).
        scores: [B] total reward of each row's episode.
        outcomes: [B] what it was before the first part that compares completions changed it; None: no part does.
        truncated: [B] True where the environment's own limit stopped the episode (`StopReason.truncated`); what was cut
            by tokens or context has ended.
        unfinished: [B] True on rows that go on in a later step, whose reward nobody knows yet, or in other rows
            (`StopReason.PAUSED`); None: there are none.
        earlier: [B, T] True on tokens that the policy sampled in earlier steps, and that the row goes on from; None:
            there are none.
        proximal_logp: [B, T] log-probability under the policy as it was when the training step began, which need not be
            the one that sampled; where a part needs it.
        values: [B, T] by the method's critic, of the text before each action token.
        next_values: [B] its value of a truncated row's whole text, 0 for other rows.
        reference_values: [B, T] log sum exp of the reference's logits that each action token was predicted by, whatever
            the temperature; 0 elsewhere.
        solved: [B] True where the task calls the episode a success, whatever the rewards say.
        written: [B] True on rows that were written (demonstrations), not sampled; None: there are none.
        elsewhere: [B] True on rows whose tokens the policy sampled in another context than the row's (a hint was shown
            that the row leaves out), so that `behaviour_logp` is not this context's; None: there are none.
        shares: [B, T] share of each token in the loss: aggregation times the row's weight; set on a whole minibatch.
        row_shares: [B] the same of each row, for losses per row.
        objective_shares: [B, T] `shares` times the factors of the token weights; None: as `shares`.
        regularizer_shares: [B, T] `shares` times the factors of regularizers that hold back some tokens only, by the
            regularizers' names.
        entropy: [B, T] of the distribution that each token was sampled from, where a part needs it.
        allowed: [B, T, V] True on the tokens that could have been drawn in each one's place; None: all could. What the
            policy says of the batch is said of these alone.
        tilts: [B, T, V] what was added to the policy's logits before each token was drawn; None: nothing was. What the
            policy says of the batch is said with it.
        voices: [B, T] which of a policy's voices said each action token, -1 where nobody knows; None: of no token. What
            the policy says of the batch is said of voice and token together, where the voice is known.
        hidden, head: [B, T, H] states that predict each token, and the policy's last layer, where they were needed to
            score or to give credit.
        row_loss: [B] each row's objective, averaged over its tokens, the last time that it was passed over.
        final: [B, T] True on tokens whose reward is the last, whatever the row goes on with; None: the last ones.
        step: [B, T] number of the step of its completion that a token belongs to, -1 outside; None: no part of the
            method says where steps begin.
        sampled_values: [B, T] reward still to come behind the text before a token: the mean of completions that were
            sampled from there, nan where none were; None: the experience samples none.
        verdicts: [B, T, m] a judge's on each step, at the token that ends it, 0 elsewhere.
        offers: [B] or [B, T] what the method's learners say of the rows before they are rewarded, by name
            (`TokenLearner.offers`).
        prompt, response: [B] numbers in the table of an enumerable policy.
        temperature: the sampling temperature that `behaviour_logp` belongs to.
    """

    tokens: Tensor
    attention_mask: Tensor
    action_mask: Tensor
    behaviour_logp: Tensor
    rewards: Tensor
    group: Tensor
    weights: Tensor
    scores: Tensor
    truncated: Tensor
    advantages: Tensor | None = None
    returns: Tensor | None = None
    values: Tensor | None = None
    next_values: Tensor | None = None
    reference_logp: Tensor | None = None
    reference_values: Tensor | None = None
    proximal_logp: Tensor | None = None
    unfinished: Tensor | None = None
    earlier: Tensor | None = None
    solved: Tensor | None = None
    written: Tensor | None = None
    elsewhere: Tensor | None = None
    shares: Tensor | None = None
    row_shares: Tensor | None = None
    objective_shares: Tensor | None = None
    draw: Tensor | None = None
    episode: Tensor | None = None
    player: Tensor | None = None
    version: Tensor | None = None
    outcomes: Tensor | None = None
    entropy: Tensor | None = None
    allowed: Tensor | None = None
    tilts: Tensor | None = None
    voices: Tensor | None = None
    hidden: Tensor | None = None
    row_loss: Tensor | None = None
    final: Tensor | None = None
    step: Tensor | None = None
    sampled_values: Tensor | None = None
    verdicts: Tensor | None = None
    prompt: Tensor | None = None
    response: Tensor | None = None
    head: Head | None = None
    regularizer_shares: dict[str, Tensor] = field(default_factory=dict)
    offers: dict[str, Tensor] = field(default_factory=dict)
    episodes: list[Episode] = field(default_factory=list)
    temperature: float = 1.0

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def lengths(self) -> Tensor:
        """[B] real tokens per row."""
        return self.attention_mask.sum(1)

    @property
    def action_counts(self) -> Tensor:
        """[B] action tokens per row."""
        return self.action_mask.sum(1)

    @property
    def sampled(self) -> Tensor:
        """[B] True on rows that the policy sampled."""
        return self.truncated.new_ones(len(self)).bool() if self.written is None else ~self.written

    @property
    def finished(self) -> Tensor:
        """[B] True on rows that do not go on in a later step."""
        return self.truncated.new_ones(len(self)).bool() if self.unfinished is None else ~self.unfinished

    @property
    def said(self) -> Tensor:
        """[B, T] True on tokens that the policy sampled, in this step or in earlier ones."""
        return self.action_mask if self.earlier is None else self.action_mask | self.earlier

    @property
    def on_policy(self) -> Tensor:
        """[B] True on rows of which `behaviour_logp` is the sampling policy's, token by token."""
        return self.sampled if self.elsewhere is None else self.sampled & ~self.elsewhere

    def once(self) -> tuple[Tensor, Tensor] | None:
        """First rows [N] of the episodes, and whose of them [B] each row is: `x[first][whose]` is x of an episode.

        None where every row is an episode of its own.
        """
        import torch

        if self.episode is None:
            return None
        numbers, whose = torch.unique(self.episode, return_inverse=True)
        if len(numbers) == len(self):
            return None
        places = torch.arange(len(self), device=whose.device)
        first = torch.full_like(numbers, len(self)).scatter_reduce(0, whose, places, "amin")
        return first, whose

    def ends(self) -> Tensor:
        """[B] True on the last row of each episode."""
        import torch

        once = self.once()
        if once is None:
            return torch.ones_like(self.sampled)
        first, whose = once
        places = torch.arange(len(self), device=whose.device)
        return torch.zeros_like(first).scatter_reduce(0, whose, places, "amax")[whose] == places

    def wholes(self) -> list[Episode]:
        """The episodes that its rows are of, each once."""
        once = self.once()
        return self.episodes if once is None else [self.episodes[i].whole for i in once[0].tolist()]

    def per_episode(self) -> TokenBatch:
        """One row of each episode, the first, with the whole of it in `episodes`; the batch where all have one."""
        once = self.once()
        return self if once is None else self.rows(once[0]).replace(episodes=self.wholes())

    def rows(self, index: Tensor, trim: bool = False) -> TokenBatch:
        """The rows at `index`, in that order; `trim` cuts padding that none of them needs."""
        width = int(self.lengths[index].max()) if trim and len(index) else self.tokens.shape[1]

        def take(x: Tensor) -> Tensor:
            return x[index][:, :width] if x.dim() > 1 else x[index]

        changes: dict[str, Any] = {k: take(v) for k, v in self._tensors().items()}
        episodes = [self.episodes[i] for i in index.tolist()] if self.episodes else []
        changes |= {name: {k: take(v) for k, v in held.items()} for name, held in self._named().items()}
        return dataclasses.replace(self, **changes, episodes=episodes)

    def replace(self, **changes: Any) -> TokenBatch:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def to(self, device: torch.device | str) -> TokenBatch:
        """The batch on another device."""
        moved: dict[str, Any] = {k: v.to(device) for k, v in self._tensors().items()}
        moved |= {name: {k: v.to(device) for k, v in held.items()} for name, held in self._named().items()}
        return dataclasses.replace(self, **moved)

    def _tensors(self) -> dict[str, Tensor]:
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {k: v for k, v in fields.items() if hasattr(v, "dim")}

    def _named(self) -> dict[str, Any]:
        """The fields that hold tensors by name."""
        return {"offers": self.offers, "regularizer_shares": self.regularizer_shares}
