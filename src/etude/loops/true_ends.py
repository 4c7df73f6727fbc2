"""What a critic learns of the last step of an episode: its reward, and nothing of what came afterwards."""

from __future__ import annotations

import warnings

from etude.core.transitions import Transitions

TOLERANCE = 1e-3
"""Of 1 and the size of the reward: what rounding may put between them."""


class TrueEnds:
    """Compares returns with rewards where episodes terminated; says once where they differ.

    Whatever estimates returns: after a true end there is nothing to be estimated. Values that are bootstrapped there,
    traces that go on into the next episode, and ends that are looked up one step off all show as a difference.
    """

    def __init__(self) -> None:
        self.told = False

    def look(self, batch: Transitions) -> None:
        """Look at a credited rollout, [P, T, E]."""
        if self.told or batch.returns is None:
            return
        there = batch.terminated if batch.weights is None else batch.terminated & (batch.weights > 0)
        rewards, returns = batch.rewards, batch.returns
        wrong = there & ((returns - rewards).abs() > TOLERANCE * (1 + rewards.abs()))
        if not bool(wrong.any()):
            return
        self.told = True
        warnings.warn(
            f"At {int(wrong.sum())} of {int(there.sum())} true ends of episodes the critic learns another return than "
            f"the last reward, {float(returns[wrong][0]):.4g} instead of {float(rewards[wrong][0]):.4g}: something of "
            "the next episode is counted in. Likely causes: advantages that do not look at terminated, or look at that "
            "of another step. The run goes on.",
            stacklevel=4,
        )
