"""Methods as loops have them: of the loop's kind, and no slot that training requires is empty."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from etude.core.errors import ConfigError
from etude.core.kinds import RolloutMethod, TokenMethod

if TYPE_CHECKING:
    from etude.core.method import Method
    from etude.core.slots import Curriculum, TokenExperience, TokenObjective, TokenOptimizer
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


def complete_token(method: Method) -> CompleteTokenMethod:
    """The method itself. Raises ConfigError if it is of another kind, or a slot that training requires is empty."""
    _check(method, TokenMethod)
    return cast("CompleteTokenMethod", method)


def complete_rollout(method: Method) -> CompleteRolloutMethod:
    """The same for methods of control."""
    _check(method, RolloutMethod)
    return cast("CompleteRolloutMethod", method)


def _check(method: Method, kind: type[Method]) -> None:
    if not isinstance(method, kind):
        raise ConfigError(f"{method.id} is a {type(method).__name__}, and this loop trains a {kind.__name__}.")
    for slot in kind.required:
        if getattr(method, slot) is None:
            raise ConfigError(f"{method.id} has no {slot}, so it cannot be trained.")
