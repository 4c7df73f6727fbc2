"""Credit from rewards to come: reward-to-go, and generalized advantage estimation with a critic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from etude.advantages.group import CENTRES, BatchMean, Centre, lone_completion, of_episodes
from etude.core.batches import TokenBatch
from etude.core.fields import Probability
from etude.core.part import Need, upgraded
from etude.core.slots import TokenAdvantages
from etude.core.step_slots import StepAdvantages
from etude.core.transitions import Transitions
from etude.core.worlds import World

if TYPE_CHECKING:
    from etude.core.method import Method


def gae(
    rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float, bootstrap: Tensor | None = None
) -> Tensor:
    """Generalized advantage estimation (arXiv:1506.02438, eq. 16) over the action tokens of each row.

        delta_t = r_t + gamma V_{t+1} - V_t,    A_t = delta_t + gamma lam A_{t+1}

    Observation tokens between two turns are skipped, not discounted. After the last action token V is `bootstrap`
    ([B], 0 if not given: the episode terminated).

    Shapes: rewards, values, mask [B, T] -> advantages [B, T], zero outside the mask.
    """
    advantage = torch.zeros_like(values[:, 0])
    following = torch.zeros_like(advantage) if bootstrap is None else bootstrap.to(values.dtype)
    out = torch.zeros_like(values)
    for t in range(values.shape[1] - 1, -1, -1):
        on = mask[:, t]
        delta = rewards[:, t] + gamma * following - values[:, t]
        advantage = torch.where(on, delta + gamma * lam * advantage, advantage)
        following = torch.where(on, values[:, t], following)
        out[:, t] = torch.where(on, advantage, out[:, t])
    return out


def transition_gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    lam: float,
) -> Tensor:
    """Generalized advantage estimation over steps of control (arXiv:1506.02438, eq. 16).

        delta_t = r_t + gamma (1 - terminated_t) V(s_{t+1}) - V(s_t)
        A_t     = delta_t + gamma lam (1 - terminated_t) (1 - truncated_t) A_{t+1}

    `next_values` are of the true next observation, also where the episode was truncated; the end of the rollout
    counts as a truncation.

    Shapes: all [P, T, E] -> [P, T, E].
    """
    deltas = rewards + gamma * (next_values * ~terminated) - values
    keeps = gamma * lam * (~(terminated | truncated)).to(values.dtype)
    advantage, backwards = torch.zeros_like(values[:, 0]), []
    for delta, keep in zip(reversed(deltas.unbind(1)), reversed(keeps.unbind(1))):
        advantage = delta + keep * advantage
        backwards.append(advantage)
    return torch.stack(backwards[::-1], 1)


def standardized_members(values: Tensor, weights: Tensor | None = None) -> Tensor:
    """[P, ...] values with mean 0 and standard deviation 1 for each member, over the steps that count.

    A member whose values are all equal gets exactly 0, whatever rounding makes of their mean.
    """
    flat = values.flatten(1)
    if weights is None:
        low, high = flat.aminmax(dim=1, keepdim=True)
        flat = flat - flat.mean(1, keepdim=True)
        variance = (flat * flat).sum(1, keepdim=True) / max(1, flat.shape[1] - 1)
    else:
        on = weights.flatten(1)
        low = flat.masked_fill(on == 0, torch.inf).amin(1, keepdim=True)
        high = flat.masked_fill(on == 0, -torch.inf).amax(1, keepdim=True)
        number = on.sum(1, keepdim=True)
        flat = flat - (flat * on).sum(1, keepdim=True) / number.clamp(min=1)
        variance = (flat * flat * on).sum(1, keepdim=True) / (number - 1).clamp(min=1)
    return (flat / (variance.sqrt() + 1e-8)).masked_fill(low == high, 0.0).view_as(values)


def rewards_to_go(rewards: Tensor, mask: Tensor, gamma: float) -> Tensor:
    """[B, T] sum of gamma^k r_{t+k} over the action tokens from t on."""
    return gae(rewards, torch.zeros_like(rewards), mask, gamma, 1.0)


def standardized(values: Tensor, mask: Tensor) -> Tensor:
    """[B, T] values with mean 0 and standard deviation 1 over the mask (unchanged if all are equal)."""
    on = values[mask]
    if not len(on) or bool(on.min() == on.max()):  # of numbers that are all equal rounding makes a deviation
        return values
    return torch.where(mask, (values - on.mean()) / on.std(correction=0).clamp(min=1e-8), values)


class RewardToGo(TokenAdvantages, StepAdvantages):
    """G_t = sum_k gamma^k r_{t+k}, minus a baseline: the REINFORCE estimator (Williams, 1992).

    Shapes: rewards [B, T] -> advantages [B, T]; in control [P, T, E] -> [P, T, E].

    Args:
        baseline: computed from the rows' total rewards (in control, from the returns of all steps); None: nothing.

    >>> from types import SimpleNamespace as Rows
    >>> rewards, mask = torch.tensor([[0.0, 4.0], [0.0, 2.0]]), torch.tensor([[True, True], [True, True]])
    >>> rows = Rows(rewards=rewards, action_mask=mask, scores=rewards.sum(1), group=torch.tensor([0, 0]))
    >>> rows.once = lambda: None  # every row is an episode of its own
    >>> RewardToGo(gamma=0.5)(rows).tolist()
    [[-1.0, 1.0], [-2.0, -1.0]]
    """

    gamma: Probability = 1.0
    baseline: Centre | None = BatchMean()

    @classmethod
    def upgrade(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        return upgraded(values, "baseline", CENTRES)

    def objection(self, method: Method) -> str | None:
        return lone_completion(method) if self.baseline is not None and self.baseline.within_group else None

    def __call__(self, batch: TokenBatch) -> Tensor:
        returns = rewards_to_go(batch.rewards, batch.action_mask, self.gamma)
        if self.baseline is not None:
            returns = returns - of_episodes(self.baseline, batch, batch.scores)[:, None]
        return returns * batch.action_mask

    def of_transitions(self, batch: Transitions) -> Tensor:
        """As for tokens; with a critic, what follows a truncation is its value, otherwise nothing."""
        returns = self.returns_of_transitions(batch)
        return returns if self.baseline is None else returns - self.baseline.of_steps(batch, returns)

    def returns_of_transitions(self, batch: Transitions) -> Tensor:
        ahead = transition_gae(
            batch.rewards, batch.values, batch.next_values, batch.terminated, batch.truncated, self.gamma, 1.0
        )
        return ahead + batch.values


class StepGAE(StepAdvantages, abstract=True):
    """Generalized advantage estimation over steps of control, standardised for every member by itself.

    Returns, the critic's targets, are A + V.

    Args:
        standardize: over the rollout or, with `per_minibatch`, over each minibatch.
        bootstrap_truncated: whether V goes on where an episode was truncated; otherwise that is an end.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.VALUES})
    gamma: Probability = 1.0
    lam: Probability = 0.95
    standardize: bool = True
    per_minibatch: bool = False
    bootstrap_truncated: bool = True

    def objection(self, method: Method) -> str | None:
        if method.slots().get("critic") is None:
            learns = "state-value" if World.CONTROL in method.worlds else "token-critic"
            return f"is computed from values that no critic learns: add one (--with {learns})."
        return None

    def of_transitions(self, batch: Transitions) -> Tensor:
        advantages = self.estimate(batch, self.lam)
        if not self.standardize or self.per_minibatch:
            return advantages
        return standardized_members(advantages, batch.weights)

    def returns_of_transitions(self, batch: Transitions) -> Tensor:
        return self.estimate(batch, self.lam) + batch.values

    def estimate(self, batch: Transitions, lam: float) -> Tensor:
        """`transition_gae` [P, T, E] with this discount; without `bootstrap_truncated` a truncation is an end."""
        ended = batch.terminated if self.bootstrap_truncated else batch.terminated | batch.truncated
        return transition_gae(batch.rewards, batch.values, batch.next_values, ended, batch.truncated, self.gamma, lam)

    def of_minibatch(self, advantages: Tensor, weights: Tensor | None = None) -> Tensor:
        return standardized_members(advantages, weights) if self.standardize and self.per_minibatch else advantages


class GAE(StepGAE, TokenAdvantages):
    """Generalized advantage estimation with the method's critic (arXiv:1506.02438), optionally standardised.

    Truncated is not terminated: an episode that its environment's limit stopped goes on with the value of what follows.
    A completion that was cut has had its reward, so nothing follows it: a value there would be no critic's target, and
    whatever it came to be would be added to the reward.
    Returns, the critic's targets, are A + V. In control every member is standardised by itself, over the rollout or,
    with `per_minibatch`, over each minibatch.

    Shapes: rewards, values [B, T] -> [B, T]; in control [P, T, E] -> [P, T, E].

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(rewards=torch.tensor([[0.0, 4.0]]), values=torch.tensor([[1.0, 2.0]]), next_values=None)
    >>> rows.action_mask = torch.tensor([[True, True]])
    >>> part = GAE(gamma=1.0, lam=0.5, standardize=False)
    >>> part(rows).tolist(), part.returns(rows).tolist()
    ([[2.0, 2.0]], [[3.0, 4.0]])
    """

    def objection(self, method: Method) -> str | None:
        if self.per_minibatch and World.CONTROL not in method.worlds:
            return "standardises over each minibatch in control only: set per_minibatch to false."
        return super().objection(method)

    def __call__(self, batch: TokenBatch) -> Tensor:
        advantages = self._of_tokens(batch)
        return standardized(advantages, batch.action_mask) if self.standardize else advantages

    def returns(self, batch: TokenBatch) -> Tensor:
        assert batch.values is not None
        return (self._of_tokens(batch) + batch.values) * batch.action_mask

    def _of_tokens(self, batch: TokenBatch) -> Tensor:
        """`gae` [B, T] of the rows."""
        assert batch.values is not None
        after = None
        if self.bootstrap_truncated and batch.next_values is not None:
            after = batch.next_values * batch.truncated
        return gae(batch.rewards, batch.values, batch.action_mask, self.gamma, self.lam, after)
