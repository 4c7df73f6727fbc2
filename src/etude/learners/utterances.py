"""Critics of whole utterances: twin values of what can be said and of where, on the policy's states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from etude.core.batches import TokenBatch
from etude.core.critic_slots import Error
from etude.core.fields import Probability
from etude.core.learners import Learning, Target, TokenLearner, TokenReading
from etude.core.part import Need
from etude.core.population import Member, Population
from etude.core.step_slots import Network
from etude.learners.heads import Scalar, Squared
from etude.learners.q import QFunctions
from etude.optimizers.adam import AdamW
from etude.policies.control.initializers import FanIn
from etude.policies.control.networks import MLP

if TYPE_CHECKING:
    from etude.core.method import Method

TURN = "turn"
"""Under this name a row's `info` has the `EncodedTurn` that it was said anew at."""


class EncodedTurn(NamedTuple):
    """A stored turn as the policy reads it now: its last states after what was shown, and after what was said there.

    Args:
        state, said, after: [H] after s, after s and the utterance a, and after s'; 0 where nothing follows.
        anew: [H] after s and another utterance, of the policy as it is.
        reward: of a. done: whether nothing follows that is worth anything.
    """

    state: Tensor
    said: Tensor
    after: Tensor
    anew: Tensor
    reward: float
    done: bool


class Turns(NamedTuple):
    """N encoded turns side by side: states [1, N, H], what Q reads [1, N, 2 H], rewards and discounts [1, N]."""

    state: Tensor
    said: Tensor
    anew: Tensor
    after: Tensor
    rewards: Tensor
    discounts: Tensor


def said_anew(batch: TokenBatch) -> Tensor:
    """[B] True on rows that were said at a stored turn."""
    return torch.tensor([TURN in e.info for e in batch.episodes], dtype=torch.bool, device=batch.tokens.device)


def stored_turns(batch: TokenBatch, gamma: float, dtype: torch.dtype) -> Turns | None:
    """The stored turns of a batch, in the order of its rows; None where there is none."""
    found: list[EncodedTurn] = [e.info[TURN] for e in batch.episodes if TURN in e.info]
    if not found:
        return None
    state, said, after, anew = (torch.stack(each).to(dtype)[None] for each in list(zip(*found))[:4])
    rewards = state.new_tensor([[turn.reward for turn in found]])
    discounts = state.new_tensor([[0.0 if turn.done else gamma for turn in found]])
    return Turns(state, torch.cat([state, said], -1), torch.cat([state, anew], -1), after, rewards, discounts)


class UtteranceCritic(TokenLearner):
    """Two Q(s, a) of utterances and two V(s), learned off-policy from stored turns (arXiv:2402.19446, eq. 2 and 3).

        loss = sum_i mean error(Q_i(s, a), r + gamma (1 - done) V'_i(s')) + mean error(V_i(s), Q'_i(s, a~))

    with a~ said anew by the policy as it is, and V', Q' slow copies. Q reads the policy's states after s and after a, V
    that after s; neither reaches the policy. Offers min_i Q_i(s, a~) - min_i V_i(s) of what was said anew.

    Args:
        gamma: discount of a turn.
        network: hidden layers of each of the four.
        error, state_error: how far Q and V are from what they learn.

    Shapes: states [1, N, H], with those after utterances [1, N, 2 H] -> [1, 2, N, 1]; offers [B].

    >>> network = UtteranceCritic(network=MLP(hidden=(4,))).build(3)
    >>> network["q"](torch.zeros(1, 5, 6)).shape, network["v"](torch.zeros(1, 5, 3)).shape
    (torch.Size([1, 2, 5, 1]), torch.Size([1, 2, 5, 1]))
    """

    reads_target: ClassVar[bool] = True
    offers_utterance_advantage: ClassVar[bool] = True
    gamma: Probability = 0.95
    network: Network = MLP(hidden=(128, 128), activation="relu", initializer=FanIn())
    error: Error = Squared()
    state_error: Error = Squared()
    learning: Learning = Learning(optimizer=AdamW(lr=1e-3), epochs=50, target=Target(rate=0.1))

    def objection(self, method: Method) -> str | None:
        if not hasattr(method.slots()["experience"], "replay"):
            return "learns from stored turns, and nobody stores any: set experience=stored-states."
        for name, part in (("error", self.error), ("state_error", self.state_error)):
            if part.compares != "numbers":
                return f"says numbers, and {type(part).__name__} compares {part.compares}: set {name}=squared."
        return super().objection(method)

    def build(self, width: int) -> nn.Module:
        def twins(size: int) -> nn.Module:
            member = Member(int(torch.randint(1 << 31, ())))
            return QFunctions(network=self.network, count=2).build_joined(size, Population([member]))

        return nn.ModuleDict({"q": twins(2 * width), "v": twins(width)})

    def loss(self, read: TokenReading) -> Tensor:
        q, v = _heads(read.network)
        turns = stored_turns(read.batch, self.gamma, _dtype(read.network))
        if turns is None:  # nothing is stored yet
            return torch.stack([(0.0 * p).sum() for p in read.network.parameters()]).sum()
        with torch.no_grad():
            slow_q, slow_v = _heads(read.target)
            follows, fresh = slow_v(turns.after)[0], slow_q(turns.anew)[0]
            rewards, discounts = turns.rewards.expand(2, -1), turns.discounts.expand(2, -1)
            target = Scalar().target(rewards, discounts, follows)
        errors = self.error(q(turns.said)[0], target), self.state_error(v(turns.state)[0], fresh)
        return torch.stack([each.sum(-1).mean(1).sum() for each in errors]).sum()

    def offers(self, read: TokenReading) -> Mapping[str, Tensor]:
        q, v = _heads(read.network)
        turns = stored_turns(read.batch, self.gamma, _dtype(read.network))
        found = torch.zeros_like(read.batch.scores)
        if turns is not None:
            least = q(turns.anew).amin(1) - v(turns.state).amin(1)
            found[said_anew(read.batch)] = least[0, :, 0].to(found)
        return {"utterance_advantage": found}


class PrefixBaseline(TokenLearner):
    """b(s, a^{<h}): what the utterance's advantage is expected to be, token by token (arXiv:2402.19446, section 3.4).

        loss = mean_h (b(s, a^{<h}) - A(s, a))^2

    A linear layer on the policy's states, 0 at the beginning. What it says is taken off each token's advantage, which
    changes no mean: it has seen the tokens before, and not the token itself.

    Shapes: states [B, T, H] -> [B, T, 1]; offers [B, T].

    >>> PrefixBaseline().build(3)(torch.ones(2, 5, 3)).abs().sum().item()
    0.0
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.HIDDEN})
    learning: Learning = Learning(optimizer=AdamW(lr=1e-3), epochs=4)

    def objection(self, method: Method) -> str | None:
        if not any(hasattr(part, "offers_utterance_advantage") for part in method.slots()["learners"]):
            return "learns the advantage of utterances, and nobody offers it: add utterance-critic to learners."
        return super().objection(method)

    def build(self, width: int) -> nn.Module:
        head = nn.Linear(width, 1)
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        return head

    def loss(self, read: TokenReading) -> Tensor:
        batch, anew = read.batch, said_anew(read.batch)
        where = batch.action_mask & anew[:, None]
        errors = (read.says[..., 0] - batch.offers["utterance_advantage"][:, None]) ** 2
        return torch.where(where, errors, 0.0).sum() / where.sum().clamp(min=1)

    def offers(self, read: TokenReading) -> Mapping[str, Tensor]:
        return {"prefix_baseline": read.says[..., 0] * read.batch.action_mask}


def _heads(network: nn.Module) -> tuple[nn.Module, nn.Module]:
    assert isinstance(network, nn.ModuleDict)
    return network["q"], network["v"]


def _dtype(network: nn.Module) -> torch.dtype:
    return next(network.parameters()).dtype
