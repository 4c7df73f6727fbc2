"""What flows through a run of control: steps of a population. The legend of shapes is in `core/batches.py`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from etude.core.batches import TokenLogProbs

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass
class Transitions:
    """Steps of control: P members, T steps, E environments each.

    Rows of a store are [P, N, ...] from the start; their actions of a Box are in units (`core/replay_slots.py`).

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
        progress: 1 - k / T where a step completed a sub-goal in k of T steps, 0 elsewhere (`core.control.Step`); kept
            where a part needs 'progress'.
        noise: [P, N, K] the random numbers that a policy made these actions of, where they are kept: where it learns
            from them it makes them of the same ones again.
        index: [P, N] where in a store the rows are; None for rollouts.
        memory, begins: [P, T, E, S] what a policy with a memory remembered before each step, and where an episode
            begins, so that nothing from before is; None without a memory.
        offers: what the method's learners say of the steps before they are rewarded (`StepLearner.offers`), by name.
    """

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    behaviour: Tensor = None  # type: ignore[assignment]  # of rollouts: rows of a store have none of these four
    behaviour_logp: Tensor = None  # type: ignore[assignment]
    values: Tensor = None  # type: ignore[assignment]
    next_values: Tensor = None  # type: ignore[assignment]
    advantages: Tensor | None = None
    returns: Tensor | None = None
    weights: Tensor | None = None
    next_observations: Tensor | None = None
    discounts: Tensor | None = None
    costs: Tensor | None = None
    progress: Tensor | None = None
    memory: Tensor | None = None
    begins: Tensor | None = None
    index: Tensor | None = None
    noise: Tensor | None = None
    offers: dict[str, Tensor] = field(default_factory=dict)

    def _map(self, change: Callable[[Tensor], Tensor]) -> Transitions:
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        changed: dict[str, Any] = {k: change(v) for k, v in fields.items() if hasattr(v, "dim")}
        return dataclasses.replace(self, **changed, offers={k: change(v) for k, v in self.offers.items()})

    def flat(self) -> Transitions:
        """Time and environments as one axis: [P, T * E, ...]."""
        return self._map(lambda x: x.flatten(1, 2))

    def to(self, device: torch.device) -> Transitions:
        """The batch on another device."""
        return self._map(lambda x: x.to(device))

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


@dataclass
class ActionLogProbs(TokenLogProbs):
    """What a policy over actions says about steps: logp, entropy, values [P, N]; distribution's parameters [P, N, K].

    Where a chain of decisions makes an action, logp is [P, N, C], as `behaviour_logp` is then.
    `kl` is KL(behaviour || policy) [P, N], exact, and `kl_parts` [P, N, K] what changes of one kind make of it
    (`Distribution.kl_parts`), for parts that need them.
    """

    parameters: Tensor | None = None
    kl: Tensor | None = None
    kl_parts: Tensor | None = None


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
