"""Methods as loops have them: of the loop's kind, and no slot that training requires is empty."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from etude.core.errors import ConfigError
from etude.core.kinds import ReplayMethod, RolloutMethod, TokenMethod

if TYPE_CHECKING:
    from etude.core.method import Method
    from etude.core.optimizer_slots import TokenOptimizer
    from etude.core.population import Number
    from etude.core.replay_slots import ReplayExperience, ReplayPolicy
    from etude.core.sampling_slots import Sampling
    from etude.core.slots import Curriculum, TokenExperience, TokenObjective
    from etude.core.step_slots import Policy, StepAdvantages, StepExperience, StepObjective, StepOptimizer

    class CompleteTokenMethod(TokenMethod):
        """A `TokenMethod` that can be trained."""

        curriculum: Curriculum
        experience: TokenExperience
        objective: TokenObjective
        optimizer: TokenOptimizer

    class CompleteRolloutMethod(RolloutMethod):
        """A `RolloutMethod` that can be trained."""

        policy: Policy
        experience: StepExperience
        advantages: StepAdvantages
        objective: StepObjective
        optimizer: StepOptimizer

    class CompleteReplayMethod(ReplayMethod):
        """A `ReplayMethod` that can be trained."""

        policy: ReplayPolicy
        experience: ReplayExperience
        sampling: Sampling


def complete_token(method: Method) -> CompleteTokenMethod:
    """The method itself. Raises ConfigError if it is of another kind, or a slot that training requires is empty."""
    _check(method, TokenMethod)
    return cast("CompleteTokenMethod", method)


def complete_rollout(method: Method) -> CompleteRolloutMethod:
    """The same for methods of control."""
    _check(method, RolloutMethod)
    return cast("CompleteRolloutMethod", method)


def complete_replay(method: Method) -> CompleteReplayMethod:
    """The same for methods that learn from what is stored."""
    _check(method, ReplayMethod)
    return cast("CompleteReplayMethod", method)


def samplings(method: Method) -> Iterator[Sampling]:
    """All that draws rows in a method that learns from what is stored."""
    from etude.core.sampling_slots import Sampling

    slots = method.slots()
    learners = (slots["critic"], slots["value"], *slots["learners"])
    drawn = (slots["sampling"], *(part.sampling for part in learners if part is not None))
    return (part for part in drawn if isinstance(part, Sampling))


def critic_gamma(method: Method) -> Number:
    """The discount that the critic of a method learns with, which learns from what is stored."""
    from etude.core.sampling_slots import Sampling

    critic, sampling = method.slots()["critic"], method.slots()["sampling"]
    own = (critic and critic.sampling) or sampling
    gamma: Number = (own.horizon if isinstance(own, Sampling) else own).gamma
    return gamma


def _check(method: Method, kind: type[Method]) -> None:
    if not isinstance(method, kind):
        raise ConfigError(f"{method.id} is a {type(method).__name__}, and this loop trains a {kind.__name__}.")
    for slot in kind.required:
        if getattr(method, slot) is None:
            raise ConfigError(f"{method.id} has no {slot}, so it cannot be trained.")
