"""Steps of a population: every member's gradient, norm and moments are its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from etude.core.errors import ConfigError, NonFiniteError
from etude.core.learners import Reading
from etude.core.population import CPU, FlatParameters, Number, PerMember
from etude.core.transitions import ActionLogProbs, Transitions

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Metrics = dict[str, Tensor]
LOOK = 50
"""Steps of another device after which it is asked whether members failed."""
MAX_FAILURES = 3
"""Steps in a row that a member may skip; the run stops at this many."""


class Surrogate(Protocol):
    """What an optimizer of control may ask about one minibatch."""

    batch: Transitions
    fresh: bool
    """Whether the weights are still those that acted, so that `evaluate` compares log-probabilities."""

    def evaluate(self) -> ActionLogProbs:
        """The current policy on the minibatch, with gradient."""
        ...

    def loss(self, policy: ActionLogProbs) -> tuple[Tensor, Metrics]:
        """[P] losses, and what to report, [P] each."""
        ...

    def mean(self, values: Tensor) -> Tensor:
        """[P, N] -> [P] over the steps that count."""
        ...

    def gradient(self) -> Metrics:
        """Put the loss's gradient into `FlatParameters.gradient`; returns what to report, [P] each."""
        ...


class Lesson(Protocol):
    """What an optimizer may ask about one minibatch of a learner."""

    batch: Transitions

    def read(self) -> Reading:
        """The minibatch as the learner's network is now."""
        ...

    def loss(self, read: Reading) -> Tensor:
        """[P] losses."""
        ...

    def gradient(self) -> Metrics:
        """As of a surrogate."""
        ...


class Differentiable(Protocol):
    """The part of surrogates and lessons that first-order optimizers use."""

    @property
    def batch(self) -> DataclassInstance | None:
        """A dataclass of tensors [P, ...], kept if the gradient is not finite."""
        ...

    def gradient(self) -> Metrics: ...


class Stepper(Protocol):
    """Takes steps on a population's flat parameters [P, D], and remembers what it must."""

    def step(self, minibatch: Any, rate: Any, /) -> Metrics:
        """One step on a minibatch; `rate`, one or one per member, is the schedule's factor on the learning rate."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """All that the next step depends on."""
        ...

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Undo `tensors`."""
        ...


class Failures:
    """How many steps in a row each member could not take because its numbers were not finite: `count` [P]."""

    def __init__(self, members: int, device: torch.device | None = None) -> None:
        self.count = torch.zeros(members, dtype=torch.int64, device=device)
        self.here, self.noted = self.count.device == CPU, 0

    def note(self, finite: Tensor, batch: DataclassInstance | None) -> None:
        """Count a step; `finite` [P]. Raises NonFiniteError, with the member's minibatch, at the third in a row.

        On another device it is looked at once in `LOOK` steps, for looking waits until the device has come so far.
        """
        self.count.add_(1).masked_fill_(finite, 0)
        self.noted += 1
        if not self.here and self.noted % LOOK:
            return
        if int(self.count.max()) >= MAX_FAILURES:
            member = int((self.count >= MAX_FAILURES).nonzero()[0, 0])
            error = NonFiniteError(
                f"The gradient of member {member} was not finite in {int(self.count[member])} optimizer steps in a "
                "row; each was skipped. Lower the learning rate (--set optimizer.lr=...) or look at the rewards and "
                "observations of the last minibatch."
            )
            error.batch = {k: v[member].contiguous() for k, v in tensors_of(batch).items()}
            raise error


def tensors_of(batch: DataclassInstance | None) -> dict[str, Tensor]:
    """The tensors of a minibatch by name, for replay."""
    found = {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch)} if batch is not None else {}
    return {k: v for k, v in found.items() if isinstance(v, Tensor)}


class PopulationAdam:
    """Adam with decoupled weight decay (arXiv:1711.05101) and one gradient norm per member.

    The same numbers as torch's AdamW after clip_grad_norm_ for each member, in a few operations on [P, D]. A member
    whose gradient is not finite keeps its weights and moments, and the step is counted (`skipped_steps`).

    Args:
        lr: a float, or one per member.

    Raises: ConfigError for betas that differ between members; NonFiniteError after three skipped steps in a row.
    """

    kernel: Callable[..., None] = staticmethod(torch._fused_adamw_)

    def __init__(
        self, parameters: FlatParameters, lr: Number, betas: tuple[float, float], epsilon: Number, weight_decay: Number,
        clip: Number | None,
    ) -> None:  # fmt: skip
        if any(isinstance(b, PerMember) for b in betas):
            raise ConfigError("beta1 and beta2 cannot differ between the members of one run: compare runs instead.")
        self.values, self.gradient = parameters.values, parameters.gradient
        self.lr, self.betas, self.epsilon, self.weight_decay, self.clip = lr, betas, epsilon, weight_decay, clip
        self.first, self.second = torch.zeros_like(self.values), torch.zeros_like(self.values)
        self.taken = torch.zeros(len(self.values), device=self.values.device)
        self.rows = [list(x.unbind(0)) for x in (self.values, self.gradient, self.first, self.second, self.taken)]
        self.failures = Failures(len(self.values), self.values.device)
        self.none = torch.zeros(len(self.values), device=self.values.device)  # of the members skipped a step

    def step(self, surrogate: Differentiable, rate: Number) -> Metrics:
        metrics = surrogate.gradient()
        norm = torch.linalg.vector_norm(self.gradient, dim=1, keepdim=True)
        sizes = norm.view(-1).tolist() if self.failures.here else ()  # of another device to ask is to wait for it
        if sizes and all(x < torch.inf for x in sizes):
            self._apply(norm, rate, within=self._within(sizes))
            self.failures.count.zero_()
            return {**metrics, "gradient_norm": norm[:, 0], "skipped_steps": self.none}
        finite = norm < torch.inf
        self._guarded(finite, norm, rate)
        taken = finite[:, 0]
        self.failures.note(taken, surrogate.batch)
        return {**metrics, "gradient_norm": norm[:, 0], "skipped_steps": 1.0 - taken.float()}

    def _within(self, sizes: list[float]) -> bool:
        """Whether to clip would multiply every member's gradient by 1."""
        return isinstance(self.clip, float) and all(x + 1e-6 < 0.999 * self.clip for x in sizes)

    @torch.no_grad()
    def _apply(self, norm: Tensor, rate: Number, within: bool = False) -> None:
        g = self.gradient
        if self.clip is not None and not within:
            g.mul_((self.clip / (norm + 1e-6)).clamp(max=1.0))
        lr = self.lr * rate
        own = any(isinstance(x, PerMember) for x in (lr, self.epsilon, self.weight_decay))
        b1, b2 = self.betas
        self.taken += 1
        for k, members in enumerate([slice(k, k + 1) for k in range(len(g))] if own else [slice(None)]):
            values, gradients, first, second, taken = (x[members] for x in self.rows)
            self.kernel(  # each row is computed by itself, whoever else is in the call
                values, gradients, first, second, [], taken, amsgrad=False, maximize=False, beta1=b1, beta2=b2,
                lr=_of(lr, k), weight_decay=_of(self.weight_decay, k), eps=_of(self.epsilon, k),
            )  # fmt: skip

    def _guarded(self, finite: Tensor, norm: Tensor, rate: Number) -> None:
        """As `_apply`, for the members with a finite gradient only."""
        kept = [x.clone() for x in (self.values, self.first, self.second, self.taken)]
        self.gradient.masked_fill_(~finite, 0.0)
        self._apply(norm.where(finite, torch.ones_like(norm)), rate)
        for now, before in zip((self.values, self.first, self.second), kept):
            now.copy_(torch.where(finite, now, before))
        self.taken.copy_(torch.where(finite[:, 0], self.taken, kept[3]))

    def tensors(self) -> dict[str, Tensor]:
        return {"first": self.first, "second": self.second, "taken": self.taken, "failures": self.failures.count}

    def load(self, tensors: dict[str, Tensor]) -> None:
        for name, value in self.tensors().items():
            value.copy_(tensors[name])


class DecayingAdam(PopulationAdam):
    """Adam (arXiv:1412.6980) whose weight decay is a term of the gradient; all else as `PopulationAdam`."""

    kernel: Callable[..., None] = staticmethod(torch._fused_adam_)


def column(number: Number, like: Tensor) -> Tensor:
    """A float, or one per member, as [P, 1] or [1, 1]."""
    return number.values.to(like) if isinstance(number, PerMember) else like.new_full((1, 1), number)


def _of(number: Number, member: int) -> float:
    """A float, or this member's."""
    return number.numbers[member] if isinstance(number, PerMember) else float(number)
