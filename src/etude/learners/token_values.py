"""Values of every token that can be said, and of where: what offline methods learn from dialogues with rewards.

Q(s, a) is a number for each word a of the vocabulary behind the text s, V(s) one for the text. Both are heads on a
model of their own, which begins as a copy of the policy's and learns with them; its slow copy has all of it. Only what
the policy says is learned from (action tokens); observations between are read, and are no steps.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, cast

import torch
from torch import Tensor, nn

from etude.advantages.returns import rewards_to_go
from etude.core.batches import TokenBatch
from etude.core.critic_slots import Error
from etude.core.fields import Count, NonNegative, Probability
from etude.core.learners import Learning, Target, TokenLearner, TokenReading
from etude.core.rows import reaching_on
from etude.learners.heads import Scalar, Squared
from etude.learners.value import Expectile
from etude.learners.value_model import silent_copy
from etude.optimizers.adam import AdamW
from etude.policies.forward import predictive_states
from etude.policies.language import LanguagePolicy
from etude.policies.logprobs import token_logprobs

if TYPE_CHECKING:
    import numpy as np
    from transformers import PreTrainedModel

    from etude.core.method import Method


# The network


class WordHead(nn.Module):
    """A number for each of `count` words from states [N, H]: one hidden layer, then a linear one that begins at 0."""

    def __init__(self, states: int, width: int, count: int) -> None:
        super().__init__()
        self.hidden, self.last = nn.Linear(states, width), nn.Linear(width, count)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, states: Tensor) -> Tensor:
        found: Tensor = self.last(self.hidden(states).relu())
        return found

    def of(self, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """What it says of tokens [N], and how unlikely its softmax finds them, -log softmax(Q)(a); never [N, V]."""
        inside = self.hidden(states).relu()
        said = (inside * self.last.weight[tokens]).sum(-1) + self.last.bias[tokens]
        logp, _ = token_logprobs(inside, self.last.weight, self.last.bias, tokens)
        return said, -logp


class Valuing(LanguagePolicy):
    """A model that says min_i Q_i - V of the words that can come next where another one says logits, once it has them.

    Before, it is looked at as any model.
    """

    network: ValuedWords | None = None

    def head_logits(self, causal: PreTrainedModel, hidden: Tensor) -> Tensor:
        return super().head_logits(causal, hidden) if self.network is None else self.network.advantages(hidden)


class ValuedWords(nn.Module):
    """A copy of a policy's model with heads that value words.

    Args:
        critics: how many Q there are.
        width: units of each head's hidden layer; None: as many as a state has numbers.
        states: whether there is a V.
    """

    def __init__(self, policy: LanguagePolicy, critics: int, width: int | None, states: bool) -> None:
        super().__init__()
        self.model = silent_copy(policy, policy.head_dtype)
        self.policy = Valuing(self.model, policy.tokenizer, share_prompts=policy.share_prompts, shadow=False)
        self.policy.network = self
        size, words = policy.width, self.model.get_output_embeddings().weight.shape[0] // policy.voices
        self.q = nn.ModuleList(WordHead(size, width or size, words) for _ in range(critics))
        self.v = WordHead(size, width or size, 1) if states else None
        self.to(policy.device, policy.head_dtype)

    @property
    def critics(self) -> list[WordHead]:
        """The Q."""
        return [cast(WordHead, head) for head in self.q]

    def states(self, batch: TokenBatch) -> Tensor:
        """[N, H] of the text before each action token, in row-major order."""
        own = self.policy
        hidden = predictive_states(own.backbone(self.model), own.config, batch, own.share_prompts, own.held)
        return hidden.to(self.policy.head_dtype)

    def advantages(self, states: Tensor) -> Tensor:
        """[N, V] the least of the Q of every word, less V where there is one."""
        least = torch.stack([head(states) for head in self.critics]).amin(0)
        return least if self.v is None else least - self.v(states)


# What is learned


def earned(rewards: Tensor, mask: Tensor) -> Tensor:
    """[B, T] at each action token all that is paid from it to the next one; 0 elsewhere.

    >>> rewards, said = torch.tensor([[9.0, 1.0, 2.0, 4.0]]), torch.tensor([[False, True, False, True]])
    >>> earned(rewards, said).tolist()
    [[0.0, 3.0, 0.0, 4.0]]
    """
    number = mask.cumsum(1)
    sums = torch.zeros_like(torch.nn.functional.pad(rewards, (0, 1))).scatter_add(1, number, rewards)
    return sums.gather(1, number) * mask


def following(values: Tensor, rows: Tensor) -> Tensor:
    """[N] of each place the value at the next one of its row; 0 at a row's last. `rows` [N] are in rising order.

    >>> following(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 0, 1])).tolist()
    [2.0, 0.0, 0.0]
    """
    later = torch.cat([values[1:], values.new_zeros(1)])
    stays = torch.cat([rows[1:] == rows[:-1], rows.new_zeros(1, dtype=torch.bool)])
    return torch.where(stays, later, 0.0)


class TokenValues(TokenLearner, abstract=True):
    """A learner of token values, by which a policy is tilted where it is sampled from: pi(a) exp(beta A(s, a)) / Z."""

    per_token: ClassVar[bool] = True
    tilts: ClassVar[bool] = True
    gamma: Probability = 0.99
    cql: NonNegative = 0.0
    beta: NonNegative = 8.0
    width: Count | None = None

    def objection(self, method: Method) -> str | None:
        slots = method.slots()
        if not slots["rewards"]:
            return "learns from rewards, and nobody says which: set rewards=task-reward."
        if slots["roles"]:
            return "tilts what one policy says, and there are several players: leave out roles."
        if any(part is not self and getattr(part, "tilts", False) for part in slots["learners"]):
            return "tilts the policy, and so does another learner: leave one of them out."
        return super().objection(method)

    def tilt(self, network: nn.Module) -> ValueTilt:
        assert isinstance(network, ValuedWords)
        return ValueTilt(network, self.beta)

    def loss(self, read: TokenReading) -> Tensor:
        assert read.batch.shares is not None
        losses = self.losses(read)
        return (losses * read.batch.shares[read.batch.action_mask].to(losses)).sum()

    @abstractmethod
    def losses(self, read: TokenReading) -> Tensor:
        """[N] of each action token, in row-major order."""


class ImplicitTokenQ(TokenValues):
    """Two Q and a V of tokens by implicit Q-learning (ILQL, arXiv:2206.11871): only the data's actions are asked about.

        loss = mean_t [ sum_i 1/2 (r + gamma V(s') - Q_i(s, a))^2 + 1/2 |tau - 1(u < 0)| u^2
                        - cql sum_i log softmax(Q_i)(a) ]

    with u = min_i Q'_i(s, a) - V(s) and Q' the slow copy; s' is where the next action token is said, whatever was
    observed between; V(s') is 0 where the dialogue ended, and that of the whole text where a limit truncated it.

    Args:
        gamma: discount of an action token.
        cql: how much the cross-entropy counts of the Q's as logits at the data's tokens: those that are not in the data
            go down (CQL).
        beta: where the policy is sampled from, min_i Q_i - V times this is added to its logits; 0: pi as it is.
        width: units of each head's hidden layer; None: as many as the model's states have numbers.
        error, state_error: how far Q and V are from what they learn; each counts half.

    Shapes: rows [B, T] -> a number.

    >>> ImplicitTokenQ(state_error=Expectile(tau=0.5)).state_error(torch.tensor(1.0), torch.tensor(3.0)).item() / 2
    1.0
    """

    reads_target: ClassVar[bool] = True
    gamma: Probability = 0.99
    cql: NonNegative = 0.0
    beta: NonNegative = 8.0
    width: Count | None = None
    error: Error = Squared()
    state_error: Error = Expectile(tau=0.95)
    learning: Learning = Learning(optimizer=AdamW(lr=1e-4), target=Target(rate=0.005))

    def objection(self, method: Method) -> str | None:
        for name, part in (("error", self.error), ("state_error", self.state_error)):
            if part.compares != "numbers":
                return f"says numbers, and {type(part).__name__} compares {part.compares}: set {name}=squared."
        return super().objection(method)

    def build_beside(self, policy: LanguagePolicy) -> ValuedWords:
        return ValuedWords(policy, 2, self.width, states=True)

    def losses(self, read: TokenReading) -> Tensor:
        batch, network, slow = read.batch, read.network, read.target
        assert isinstance(network, ValuedWords) and isinstance(slow, ValuedWords) and network.v is not None
        longer, after = reaching_on(batch, network.policy.context)
        said, tokens = ~after[longer.action_mask], batch.tokens[batch.action_mask]
        states = network.states(longer)
        values = network.v(states)[:, 0]
        with torch.no_grad():
            there = slow.states(longer)[said]
            least = torch.stack([head.of(there, tokens)[0] for head in slow.critics]).amin(0)
            rewards = earned(batch.rewards, batch.action_mask)[batch.action_mask].to(values)
            later = following(values, longer.action_mask.nonzero()[:, 0])[said]
            target = Scalar().target(rewards, torch.full_like(rewards, self.gamma), later[:, None])[:, 0]
        total = self.state_error(values[said], least) / 2
        for head in network.critics:
            q, unlikely = head.of(states[said], tokens)
            total = total + self.error(q, target) / 2 + self.cql * unlikely
        return total


class ReturnTokenQ(TokenValues):
    """One Q of tokens, regressed to what was paid from each on: Monte Carlo returns (LMRL Gym, arXiv:2311.18232).

        loss = mean_t 1/2 (G_t - Q(s, a))^2 + cql (-log softmax(Q)(a)),    G_t = sum_k gamma^k r_{t+k}

    over the action tokens from t on. It is the value of those who wrote the data, and no better policy's; after a
    truncation nothing is earned.

    Args:
        gamma, cql, beta, width: as of `ImplicitTokenQ`.
        error: how far Q is from the return; it counts half.

    Shapes: rows [B, T] -> a number.

    >>> rewards, said = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[False, True, True]])
    >>> rewards_to_go(earned(rewards, said), said, 0.5).tolist()
    [[0.0, 0.5, 1.0]]
    """

    gamma: Probability = 0.99
    cql: NonNegative = 0.0
    beta: NonNegative = 8.0
    width: Count | None = None
    error: Error = Squared()
    learning: Learning = Learning(optimizer=AdamW(lr=1e-4))

    def objection(self, method: Method) -> str | None:
        if self.error.compares != "numbers":
            return f"says numbers, and {type(self.error).__name__} compares {self.error.compares}: set error=squared."
        return super().objection(method)

    def build_beside(self, policy: LanguagePolicy) -> ValuedWords:
        return ValuedWords(policy, 1, self.width, states=False)

    def losses(self, read: TokenReading) -> Tensor:
        batch, network = read.batch, read.network
        assert isinstance(network, ValuedWords)
        mask = batch.action_mask
        returns = rewards_to_go(earned(batch.rewards, mask), mask, self.gamma)[mask]
        q, unlikely = network.critics[0].of(network.states(batch), batch.tokens[mask])
        return self.error(q, returns.to(q)) / 2 + self.cql * unlikely


# Where tokens are drawn


class ValueTilt:
    """Adds beta (min_i Q_i - V) to the logits of the words that can come next.

    It reads along in a conversation of its own, which stays open between turns: rows that go on from what it has read
    are read on, all others anew.
    """

    def __init__(self, network: ValuedWords, beta: float) -> None:
        self.network, self.beta = network, beta
        self.conversation, self.handles = network.policy.converse(), list[int]()

    def begin(self, rows: Sequence[Sequence[int]], room: int) -> ValueReader:
        held: dict[tuple[int, ...], list[int]] = {}
        for handle in self.handles:
            held.setdefault(tuple(self.conversation.tokens(handle)), []).append(handle)
        sizes = sorted({len(tokens) for tokens in held}, reverse=True)
        self.handles = [self._handle(row, held, sizes) for row in rows]
        self.conversation.close([handle for left in held.values() for handle in left])
        return ValueReader(self, self.handles, room)

    def _handle(self, row: Sequence[int], held: dict[tuple[int, ...], list[int]], sizes: Sequence[int]) -> int:
        """The conversation's row that holds this one, or its beginning so far; a new one where none does."""
        for size in sizes:
            if size < len(row) and (there := held.get(tuple(row[:size]))):
                handle = there.pop()
                self.conversation.extend([handle], [list(row[size:])])
                return handle
        return self.conversation.open([row])[0]


class ValueReader:
    """Rows as the values read them while they are sampled."""

    def __init__(self, tilt: ValueTilt, handles: Sequence[int], room: int) -> None:
        self.tilt, self.handles, self.room = tilt, handles, room

    def tilts(self, rows: np.ndarray) -> Tensor:
        asked = [self.handles[i] for i in rows]
        return self.tilt.beta * self.tilt.conversation.following(asked, self.room)

    def said(self, rows: np.ndarray, tokens: Tensor) -> None:
        self.tilt.conversation.extend([self.handles[i] for i in rows], tokens[:, None].tolist())
