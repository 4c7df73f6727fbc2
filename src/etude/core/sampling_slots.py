"""The vocabulary of what is done while data is gathered, and of which stored rows are learned from.

The legend of shapes is in `core/batches.py`; actions of a Box are in units here, scaled to [-1, 1] by its bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol

from etude.core.fields import Interval
from etude.core.part import Part
from etude.core.transitions import Transitions

if TYPE_CHECKING:
    from torch import Generator, Tensor


class Drawing(Protocol):
    """Random numbers of one time, for every member: what is drawn under a name is the same however it is asked for."""

    def __call__(self, name: str, of: Callable[[Generator, int], Tensor]) -> Tensor:
        """[P, ...] of what `of(generator, count)` draws for `count` times at once, [count, ...]."""
        ...


class Exploration(Part, abstract=True):
    """What is done while data is gathered, given what the policy would do."""

    slot = "exploration"

    def accepts(self, spread: Any) -> None:
        """Raise ConfigError if it cannot act beside a policy of this distribution."""

    def act(self, actor: Any, said: Tensor, draw: Drawing, acted: int) -> Tensor:
        """Actions [P, E, A] in units.

        Args:
            actor: the policy's module; `said` [P, E, K] are its distribution's parameters.
            acted: environment steps of each member so far.
        """
        raise NotImplementedError

    def instead(self, actor: Any, count: int, draw: Drawing, acted: int) -> tuple[Tensor, Tensor] | None:
        """Where, [P, E, 1] of `count` environments, other actions are done than `act` says, and these, [P, E, A].

        Where they are done everywhere nobody asks what the policy would do. None: nowhere, ever.
        """
        return None

    def noise(self, actor: Any, count: int, draw: Drawing) -> Tensor | None:
        """[P, E, K] what the policy makes its actions in E environments of; None where others are done than these."""
        return None

    def ended(self, done: Tensor) -> None:
        """Forget the episodes that ended, [P, E]."""


class Horizon(Part, abstract=True):
    """How far rewards are summed before a value follows; what that value counts stands in `discounts`.

    Args:
        gamma: the discount of a step: it stands nowhere else.
    """

    slot = "horizon"
    windows: ClassVar[bool] = False
    """Whether it shows several steps of each row, [P, N, T, ...], and not what they come to."""
    beyond: ClassVar[int] = 0
    """Steps after the last one that is learned from of which it reads something too."""
    gamma: Annotated[float, Interval(ge=0, le=1)] = 0.99

    @property
    def length(self) -> int:
        """Steps at most."""
        raise NotImplementedError

    def read(self, store: Any, index: Tensor) -> Transitions:
        """The rows at `index` [P, N] of a store, ended by ends of episodes and by what is not stored."""
        raise NotImplementedError


class Augmentation(Part, abstract=True):
    """What is done to observations each time that they are learned from."""

    slot = "augment"

    def accepts(self, shape: tuple[int, ...]) -> None:
        """Raise ConfigError for observations of a shape that it cannot change."""

    def __call__(self, seen: Tensor, draw: Drawing, name: str) -> Tensor:
        """Observations [P, N, ...] of a batch, changed by the random numbers of this name."""
        raise NotImplementedError


class Sampling(Part, abstract=True):
    """Which rows are learned from."""

    slot = "sampling"
    reads_errors: ClassVar[bool] = False
    """Whether it draws by how far the critic was off (`learn`)."""
    newest: ClassVar[bool] = False
    """Whether it reads the steps that were just taken and no others; else it draws `batch` rows of each member."""
    horizon: Horizon

    def draw(self, store: Any, draw: Drawing) -> Transitions:
        """Rows [P, N, ...] of a store, with what `horizon` makes of them.

        `offers["importance"]` [P, N], where it is there, says how much each row counts in the critic's loss.
        """
        raise NotImplementedError

    def accepts(self, shape: tuple[int, ...]) -> None:
        """Raise ConfigError for observations of a shape that it cannot draw."""

    def augmented(self, batch: Transitions, draw: Drawing) -> Transitions:
        """Rows that were drawn as they are learned from; `draw` does this already."""
        return batch

    def learn(self, batch: Transitions, errors: Tensor) -> None:
        """Take down how far the critic was off on rows that were drawn, [P, N], at least 0."""


def gives_windows(sampling: Sampling | Horizon | None) -> bool:
    """Whether rows that are drawn so are windows of steps."""
    horizon = sampling.horizon if isinstance(sampling, Sampling) else sampling
    return horizon is not None and horizon.windows
