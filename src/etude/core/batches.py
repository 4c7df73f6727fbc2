"""What flows through a run, and the one legend of its shapes.

    B  rows of a batch (one row per view of an episode that was sampled from)
    T  tokens of the longest row; entry t of every [B, T] tensor belongs to token t, the one *predicted*
    V  vocabulary,  H  hidden width,  G  completions per problem
    P  members of a population,  E  environments of each,  N  steps of a minibatch,  K  distribution parameters
    C  links of a chain of decisions that makes one action (steps of denoising)

Rewards and advantages are in the task's reward units, log-probabilities in nats, durations in seconds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

from etude.core.draws import Draw

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Role = Literal["system", "user", "assistant", "tool", "summary", "critique", "subgoal"]
Message = Mapping[str, str]


class StopReason(StrEnum):
    """Why an episode or a completion ended.

    Two words for what a limit stops: a completion is *cut* by a limit of tokens or of context, and is scored as it
    stands; an episode is *truncated* by its environment's own limit, of turns or of time, before its outcome.
    """

    TERMINATED = "terminated"  # the environment ended the episode
    END_OF_TEXT = "end_of_text"  # the policy sampled its end token
    STOP_STRING = "stop_string"
    MAX_TOKENS = "max_tokens"
    MAX_TURNS = "max_turns"
    CONTEXT_OVERFLOW = "context_overflow"
    TRUNCATED = "truncated"  # the environment's own limit
    FAULT = "fault"  # the environment raised; the episode is discarded

    @property
    def cut(self) -> bool:
        """Whether tokens or context ran out before the policy was done. The reward is paid: no value follows."""
        return self in (StopReason.MAX_TOKENS, StopReason.CONTEXT_OVERFLOW)

    @property
    def truncated(self) -> bool:
        """Whether the environment stopped before the outcome, so that values go on. Truncated is not terminated."""
        return self in (StopReason.MAX_TURNS, StopReason.TRUNCATED)


@dataclass(frozen=True)
class Problem:
    """One thing to solve.

    Args:
        id: unique within its task; keys splits, curricula and resume.
        prompt: text, or chat messages (`[{"role": ..., "content": ...}]`).
        answer: what the verifier needs; never shown to the policy.
        level: the distribution or difficulty it was drawn from, for curricula and reports.
        info: anything else (demonstrations, chosen/rejected answers, user columns).
    """

    id: str
    prompt: str | Sequence[Message]
    answer: Any = None
    level: str = ""
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Segment:
    """A run of tokens by one speaker.

    `tokens` is the only record of what was sampled; `text` is a view of it (for observations, what to encode).
    `action_mask` is 1 on tokens that the policy sampled and is trained on.
    """

    role: Role
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    action_mask: list[int] = field(default_factory=list)
    behaviour_logp: list[float] = field(default_factory=list)
    version: int = -1
    reward: float = 0.0
    duration: float = 0.0
    info: dict[str, Any] = field(default_factory=dict)


@dataclass
class Episode:
    """A list of segments, for one turn or forty.

    Args:
        group: episodes of one group answer the same problem and are compared with each other.
        player: role among several players (proposer, solver, critic, ...).
        parent: index of the episode this one was branched from, at turn `fork_turn`.
        seed: what its environment was reset with.
        draw: where its random numbers come from; None: nothing of it was sampled.
        scores: reward by component, filled in by the rewards; `total` is their sum, and `outcome` that of the parts
            that judge outcomes: the total without penalties on how it came about.
    """

    problem: Problem
    segments: list[Segment] = field(default_factory=list)
    group: int = 0
    player: str = "policy"
    parent: int | None = None
    fork_turn: int | None = None
    seed: int = 0
    draw: Draw | None = None
    stop: StopReason = StopReason.TERMINATED
    scores: dict[str, float] = field(default_factory=dict)
    total: float = 0.0
    outcome: float = 0.0
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def completion(self) -> str:
        """Text of everything the policy said."""
        return "".join(s.text for s in self.segments if s.role == "assistant")

    @property
    def reward(self) -> float:
        """What the environment paid, summed over turns."""
        return sum(s.reward for s in self.segments)

    @property
    def turns(self) -> list[Segment]:
        """The segments in which the policy sampled."""
        return [s for s in self.segments if any(s.action_mask)]

    @property
    def tokens(self) -> list[int]:
        return [t for s in self.segments for t in s.tokens]

    @property
    def action_count(self) -> int:
        """Number of sampled tokens."""
        return sum(sum(s.action_mask) for s in self.segments)


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
        found = -z.softmax(-1)
        found.scatter_add_(1, tokens[:, None], found.new_ones(len(tokens), 1))
        if self.softcap:
            found = found * (1 - (z * self.temperature / self.softcap) ** 2)
        return found / self.temperature

    def score(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """d log p(token) / d h [N, H], without a backward pass."""
        return self.residual(hidden, tokens) @ self.weight


@dataclass
class TokenLogProbs:
    """What a policy says about a batch.

    Shapes: logp, entropy, values [B, T]; hidden [B, T, H]. Entries outside the action mask are 0.
    `logp` is taken at the temperature that the batch was sampled with.
    `head` maps `hidden` to logits; `learning_rate` is that of the coming optimizer step, for token weights.
    `logits` [B, T, V] are those that each token was chosen by, whatever the temperature.
    `said` is what the networks of learners say that the policy's step trains, by the learners' names, [B, T, ...].
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
        values: [B, T] by the method's critic, of the text before each action token.
        next_values: [B] its value of a truncated row's whole text, 0 for other rows.
        solved: [B] True where the task calls the episode a success, whatever the rewards say.
        written: [B] True on rows that were written (demonstrations), not sampled; None: there are none.
        elsewhere: [B] True on rows whose tokens the policy sampled in another context than the row's (a hint was shown
            that the row leaves out), so that `behaviour_logp` is not this context's; None: there are none.
        shares: [B, T] share of each token in the loss: aggregation times the row's weight; set on a whole minibatch.
        row_shares: [B] the same of each row, for losses per row.
        objective_shares: [B, T] `shares` times the factors of the token weights; None: as `shares`.
        entropy: [B, T] of the distribution that each token was sampled from, where a part needs it.
        hidden, head: [B, T, H] states that predict each token, and the policy's last layer, where they were needed to
            score or to give credit.
        row_loss: [B] each row's objective, averaged over its tokens, the last time that it was passed over.
        final: [B, T] True on tokens whose reward is the last, whatever the row goes on with; None: the last ones.
        prompt, response: [B] numbers in the table of an enumerable policy.
        extras: what one part alone leaves for itself, keyed by name; [B] or [B, T].
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
    hidden: Tensor | None = None
    row_loss: Tensor | None = None
    final: Tensor | None = None
    prompt: Tensor | None = None
    response: Tensor | None = None
    head: Head | None = None
    extras: dict[str, Tensor] = field(default_factory=dict)
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

    def rows(self, index: Tensor, trim: bool = False) -> TokenBatch:
        """The rows at `index`, in that order; `trim` cuts padding that none of them needs."""
        width = int(self.lengths[index].max()) if trim and len(index) else self.tokens.shape[1]

        def take(x: Any) -> Any:
            return x[index][:, :width] if x.dim() > 1 else x[index]

        changes = {k: take(v) for k, v in self._tensors().items()}
        episodes = [self.episodes[i] for i in index.tolist()] if self.episodes else []
        extras = {k: take(v) for k, v in self.extras.items()}
        return dataclasses.replace(self, **changes, episodes=episodes, extras=extras)

    def replace(self, **changes: Any) -> TokenBatch:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def to(self, device: torch.device | str) -> TokenBatch:
        """The batch on another device."""
        moved: dict[str, Any] = {k: v.to(device) for k, v in self._tensors().items()}
        return dataclasses.replace(self, **moved, extras={k: v.to(device) for k, v in self.extras.items()})

    def _tensors(self) -> dict[str, Tensor]:
        found = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {k: v for k, v in found.items() if hasattr(v, "dim")}


@dataclass
class Transitions:
    """Steps of control: P members, T steps, E environments each.

    Shapes: observations and actions [P, T, E, ...], behaviour [P, T, E, K], everything else [P, T, E]; after `flat`
    or `rows`, [P, N, ...]. `terminated` ends the value; `truncated` only ends the recursion: `next_values` bootstraps
    from the true last observation of an episode, never from the first of the next.

    Args:
        behaviour: parameters of the distribution that each action was sampled from.
        values, next_values: V(s_t) and V(s_{t+1}) by the critic that acted; 0 without a critic.
        weights: 1 for a step that counts, 0 for one of a discarded episode, which nothing may see; None: all count.
        next_observations: what each step led to: at an end the last observation of the episode, never the first of the
            next. Kept where a part needs 'next_observations', for images double the memory.
        discounts: what the value of `next_observations` counts: 0 where the episode terminated, 1 elsewhere, truncated
            or not, until something that looks further ahead writes gamma^n (1 - terminated) there. Kept with them.
        costs: what the environment says that each step cost, apart from its reward; kept where a part needs 'costs'.
    """

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    behaviour: Tensor
    behaviour_logp: Tensor
    values: Tensor
    next_values: Tensor
    advantages: Tensor | None = None
    returns: Tensor | None = None
    weights: Tensor | None = None
    next_observations: Tensor | None = None
    discounts: Tensor | None = None
    costs: Tensor | None = None
    extras: dict[str, Tensor] = field(default_factory=dict)

    def _map(self, change: Any) -> Transitions:
        found = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        changed: dict[str, Any] = {k: change(v) for k, v in found.items() if hasattr(v, "dim")}
        return dataclasses.replace(self, **changed, extras={k: change(v) for k, v in self.extras.items()})

    def flat(self) -> Transitions:
        """Time and environments as one axis: [P, T * E, ...]."""
        return self._map(lambda x: x.flatten(1, 2))

    def rows(self, index: Tensor) -> Transitions:
        """Each member's own rows, `index` [P, N], of a flat batch."""
        place = index + index.new_tensor(range(len(index)))[:, None] * self.rewards.shape[1]

        def rows(x: Tensor) -> Tensor:
            if x.dim() == 2:
                return x.take(place)
            return x.flatten(0, 1).index_select(0, place.flatten()).view(*place.shape, *x.shape[2:])

        return self._map(rows)

    def slice(self, start: int, stop: int) -> Transitions:
        """Rows from `start` to `stop` of a flat batch, without a copy."""
        return self._map(lambda x: x[:, start:stop])

    def mean(self, values: Tensor) -> Tensor:
        """[P] means over the steps that count, of a number for each step [P, T, E] or [P, N].

        Numbers for each link of a chain, [P, N, C], count as their mean over the chain once the batch is flat.
        """
        values = (per_step(values) if self.rewards.dim() == 2 else values).flatten(1)
        if self.weights is None:
            return values.mean(1)
        weights = self.weights.flatten(1)
        return (values * weights).sum(1) / weights.sum(1).clamp(min=1)

    def replace(self, **changes: Any) -> Transitions:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)


def per_step(values: Tensor) -> Tensor:
    """[P, N] as it is, [P, N, C] as means over the chain: each link is a decision of its own, with its step's weight.

    >>> import torch
    >>> per_step(torch.tensor([[[1.0, 3.0], [4.0, 6.0]]]))
    tensor([[2., 5.]])
    """
    return values if values.dim() <= 2 else values.flatten(2).mean(2)


def along(values: Tensor, chain: Tensor) -> Tensor:
    """Numbers of steps, shaped so that each stands beside every link of its chain: [P, N] as [P, N, 1] for [P, N, C].

    Where both have the same axes ([B, T], [P, N]) they stay as they are.
    """
    return values.view(*values.shape, *[1] * (chain.dim() - values.dim()))


@dataclass
class ActionLogProbs(TokenLogProbs):
    """What a policy over actions says about steps: logp, entropy, values [P, N]; distribution's parameters [P, N, K].

    Where a chain of decisions makes an action, logp is [P, N, C], as `behaviour_logp` is then.
    `kl` is KL(behaviour || policy) [P, N], exact, for parts that need it.
    """

    parameters: Tensor | None = None
    kl: Tensor | None = None
