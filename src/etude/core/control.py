"""Tasks of control: environments with actions, many at a time, for several members at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from etude.core.part import Need
from etude.core.task import Task
from etude.core.transitions import Transitions
from etude.core.worlds import World

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


class Ways(NamedTuple):
    """How to go to places of one's own in a task, whatever it pays for.

    Shapes: places [N, G]; towards: observations [E, D] and places [E, G] -> actions [E, A]; arrived: the same -> [E].
    """

    places: np.ndarray
    towards: Callable[[np.ndarray, np.ndarray], np.ndarray]
    arrived: Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass
class Step:
    """What M members' E environments answered. An episode that ended has begun again: `observations` act next.

    Shapes: observations [M, E, ...]; rewards, costs, progress float32, terminated, truncated, faulty bool [M, E].

    Args:
        final: [K, ...] the true last observations of the K episodes that ended here, in the order of
            `numpy.nonzero(terminated | truncated)`.
        faulty: where the environment failed: its episode does not count.
        costs: what the step cost apart from its reward, for environments that say so in `info["cost"]` (the convention
            of Safety-Gymnasium, arXiv:2310.12567); None for all others.
        progress: of environments that say so in `info["subgoal_progress"]`, how early a sub-goal was completed by this
            step: 1 - k / T for one that took k of an episode's T steps, 0 where none was; None for all others. No
            reward has it.
    """

    observations: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    final: np.ndarray | None = None
    faulty: np.ndarray | None = None
    costs: np.ndarray | None = None
    progress: np.ndarray | None = None


class VectorEnvironment(Protocol):
    """E environments for each of M members. Observations are flat vectors, or images [C, H, W].

    Of several leaves they hold one after another, a mask of the allowed actions last (`policies/control/leaves.py`).

    Actions are float32 [M, E, A] as in `policies/control/distributions.py`. Environment e of member m depends on the
    member's seed and e alone.
    """

    observation_space: Any
    action_space: Any

    def reset(self) -> np.ndarray:
        """Begin; the first observations [M, E, ...]."""
        ...

    def step(self, actions: np.ndarray) -> Step:
        """Act everywhere."""
        ...

    def state(self) -> dict[str, Any]:
        """Everything that the next step depends on: arrays and JSON values."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to exactly where `state` was taken."""
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...


class Collector(Protocol):
    """Acts in a population's environments, and remembers where every episode stands (`StepExperience.collector`)."""

    actor: Any
    """What acts: the policy's module, or a copy that has its weights whenever a rollout begins."""
    observations: np.ndarray
    """[P, E, ...] what acts next."""
    ended: list[tuple[int, float, int]]
    """The episodes that ended while it collected last: member, return, length; failed ones are not among them."""
    faults: int
    """How many failed meanwhile."""

    def collect(self, number: int, critic: Callable[[Tensor], Tensor] | None) -> Transitions:
        """What training step `number` learns from [P, T, E]; `critic` maps what it reads [P, N, ...] to values."""
        ...

    def follow(self, needs: frozenset[Need], shared: bool) -> None:
        """Go on in the same episodes for a method with these needs, and a critic that reads features if `shared`."""
        ...

    def state(self) -> dict[str, Any]:
        """Everything that the next steps depend on: tensors, arrays and JSON values."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to exactly where `state` was taken."""
        ...


class ControlTask(Task, abstract=True):
    """Something to control. `steps` is the default budget, in environment steps of each member."""

    world: ClassVar[World] = World.CONTROL
    together: ClassVar[bool] = True
    steps: ClassVar[int] = 100_000
    rendered: ClassVar[str] = ""
    """Gymnasium's id of the same environment, where this one draws no pictures."""

    def splits(self) -> tuple[str, ...]:
        return ("test",)

    @property
    def runs_on(self) -> str:
        """Who steps it; the task itself, unless it says another."""
        return "built-in"

    def controller(self) -> Callable[[np.ndarray], np.ndarray] | None:
        """Who knows what to do, observations [..., D] -> actions [..., A]; None where nobody does."""
        return None

    def ways(self) -> Ways | None:
        """Who can go anywhere; None where nobody can."""
        return None

    def make(self, seeds: Sequence[int], count: int, purpose: str = "train") -> VectorEnvironment:
        """`count` environments for each member; other purposes ('test') have other random numbers."""
        raise NotImplementedError
