"""Rewards that people's answers teach, in rollouts: nobody but who is asked sees what the environment paid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from etude.core.errors import ConfigError
from etude.core.fields import Positive
from etude.core.learners import Learning, Reading, StepLearner
from etude.core.step_slots import StepReward
from etude.core.transitions import Transitions
from etude.methods.preference.rlhf_survey.models import PreferenceModels, Segments
from etude.optimizers.adam import Adam
from etude.policies.control.observations import merged

if TYPE_CHECKING:
    from etude.core.method import Method


class RolloutPreferences(PreferenceModels, StepLearner):
    """Models of rewards that learn from answers about segments of rollouts, before the policy does.

    Every rollout is a session; it is rewarded by the models as they were before.

    Shapes: observations [P, T, E, D].

    >>> RolloutPreferences().count, RolloutPreferences().learning.order
    (3, 'before')
    """

    learning: Learning = Learning(Adam(lr=1e-3), epochs=15, order="before")

    def objection(self, method: Method) -> str | None:
        slots = method.slots()
        if not any(isinstance(part, ModelRewards) for part in slots["rewards"]):
            return "rewards steps, and no part reads what it says: set rewards=model-rewards."
        if slots["experience"] is not None and slots["experience"].steps < self.length:
            return f"asks about {self.length} steps of a rollout, which has fewer: set learners.{self.name}.length."
        return super().objection(method)

    def offers(self, read: Reading) -> Mapping[str, Tensor]:
        batch = read.batch
        said: Tensor = read.network(read.seen, batch.actions)
        return {"model_rewards": said.mT, "models_saw": read.seen, "paid": batch.rewards}

    def before_update(self, batch: Transitions) -> None:
        if not self.wanted:
            return
        steps, environments = batch.rewards.shape[1:]
        begin = self.numbers("segments", 4 * self.drawn)
        begin = (begin.double() * ((steps - self.length + 1) * environments)).long().to(batch.rewards.device)
        along = torch.arange(self.length, device=begin.device) * environments
        places = begin[..., None] + along
        rows = batch.flat().rows(places.flatten(1))
        columns = (rows.offers["models_saw"], rows.actions, rows.offers["paid"], rows.terminated, rows.truncated)
        seen, done, paid, terminated, truncated = (x.unflatten(1, places.shape[1:]) for x in columns)
        live = before_an_end(terminated | truncated)
        self.ask(whole(Segments(seen, done, paid * live, live), terminated, self.drawn), self.made["network"])

    def loss(self, read: Reading) -> Tensor:
        return self.minimised(read.network)


def before_an_end(ended: Tensor) -> Tensor:
    """1.0 on steps up to the first that ends, that one included: [..., L].

    >>> before_an_end(torch.tensor([False, True, False])).tolist()
    [1.0, 1.0, 0.0]
    """
    counts = ended.long().cumsum(-1) - ended.long()
    return (counts == 0).to(torch.get_default_dtype())


def whole(segments: Segments, terminated: Tensor, count: int) -> Segments:
    """`count` of each member that have all their steps or terminated, some of them twice where there are too few.

    What a time limit cuts would be worth as much less, or more, as it has fewer steps.

    Raises: ConfigError for a member that has none.
    """
    live = segments.live.bool()
    fine = live.all(-1) | (terminated & live).any(-1)
    number = fine.sum(1, keepdim=True)
    if not bool(number.all()):
        raise ConfigError(
            f"Segments of {live.shape[-1]} steps are compared, and no episode lasts as long before its time limit: "
            "lower learners.*.length."
        )
    place = torch.arange(count, device=number.device) % number
    order = (~fine).to(torch.uint8).argsort(dim=1, stable=True).take_along_dim(place, 1)
    return Segments(*(x.take_along_dim(order.view(*order.shape, *[1] * (x.dim() - 2)), 1) for x in segments))


class ModelRewards(StepReward):
    """Steps are paid what models of rewards say, each on a common scale, their mean; not what the environment pays.

        r = std mean_m (r_m - mean[r_m]) / deviation[r_m]

    Mean and deviation are each model's over all steps of the member so far, this rollout included.

    Args:
        std: of the rewards of each model.
        centre: whether the mean is taken off. Where episodes terminate that says how much living on is worth, and
            leaving it decides; segments that ended early were compared as they are, so 0 means something.

    Shapes: [P, T, E].

    >>> from types import SimpleNamespace as Rows
    >>> said = torch.tensor([[[[1.0, 2.0]], [[3.0, 8.0]]]])  # two models of two steps
    >>> rows = Rows(rewards=torch.zeros(1, 2, 1), weights=None, offers={"model_rewards": said})
    >>> for centre in (True, False):
    ...     print([round(x, 4) for x in ModelRewards(centre=centre).bind().shape(rows).flatten().tolist()])
    [-1.0, 1.0]
    [0.8333, 2.8333]
    """

    std: Positive = 1.0
    centre: bool = True

    def objection(self, method: Method) -> str | None:
        if "critic" in method.slot_names() and "actor" in method.slot_names():
            return "reads rollouts: set critic.backup=relabelled-bootstrap."
        if not any(isinstance(part, RolloutPreferences) for part in method.slots()["learners"]):
            return "pays what models of rewards say, and there are none: set learners=rollout-preferences."
        return None

    def initial_state(self) -> dict[str, Any]:
        return {"count": 0.0}

    def shape(self, batch: Transitions) -> Tensor:
        said, state = batch.offers["model_rewards"].double(), self.state
        weights = None if batch.weights is None else batch.weights.flatten(1)
        before = (state.get("mean", 0.0), state.get("variance", 0.0), state["count"])
        mean, variance, count = merged(said.flatten(1, 2), *before, weights)
        state |= {"mean": mean, "variance": variance, "count": count}
        shift = mean if self.centre else torch.zeros_like(mean)
        scaled = (said - shift[:, None]) / (variance[:, None] + 1e-12).sqrt()
        return (self.std * scaled).mean(-1).to(batch.rewards.dtype)
