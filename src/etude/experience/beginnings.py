"""How episodes begin and end in a vector of environments: what cannot be chance is said once."""

from __future__ import annotations

import warnings

import numpy as np

from etude.core.control import Step

ENDS = 10
"""Ends of episodes after which something can be said of them, and is then looked at no longer."""
EPISODES = 3
"""Beginnings of each environment that are compared with those of the member's others."""


class Beginnings:
    """Watches the first and the last observations of episodes; it changes no number.

    Two faults look like learning that is merely slow. An environment that resets itself may hand out the first
    observation of the next episode as the last one of this: then the two are equal wherever an episode ends. And
    environments that were given one seed all begin alike, though each begins otherwise every time.

    Args:
        observations: [M, E, ...] the first ones.
    """

    def __init__(self, observations: np.ndarray) -> None:
        self.firsts = [[[x.tobytes()] for x in member] for member in observations]
        self.equal = self.ends = 0
        self.varied = False
        self.looks, self.compares = True, observations.shape[1] > 1

    def forget(self) -> None:
        """Observations are of the middle of episodes now."""
        self.firsts = [[[] for _ in member] for member in self.firsts]

    def ended(self, step: Step) -> None:
        """Look at episodes that ended in a step, and at those that began in their place."""
        if step.final is None or not (self.looks or self.compares):
            return
        done = step.terminated | step.truncated
        places, begun = np.argwhere(done), step.observations[done]
        faulty = np.zeros(len(places), bool) if step.faulty is None else step.faulty[done]
        for (m, e), first, last, wrong in zip(places, begun, step.final, faulty, strict=True):
            if self.looks and not wrong:
                self._look(first, last, step.observations)
            if self.compares and len(self.firsts[m][e]) < EPISODES:
                self.firsts[m][e].append(first.tobytes())
        if self.compares:
            self._compare()

    def _look(self, first: np.ndarray, last: np.ndarray, now: np.ndarray) -> None:
        self.ends += 1
        self.equal += np.array_equal(first, last)
        self.varied |= bool((now != first).any())
        self.looks = self.ends < ENDS and self.equal == self.ends
        if self.ends == self.equal == ENDS and self.varied:
            warnings.warn(
                f"Each of the first {ENDS} episodes ended with the observation that the next one began with: the "
                "environment resets itself before it says what the episode came to, so values are learned from "
                "another episode. Return the last observation of an episode, and reset afterwards.",
                stacklevel=4,
            )

    def _compare(self) -> None:
        if any(len(own) < EPISODES for member in self.firsts for own in member):
            return
        self.compares = False
        for m, member in enumerate(self.firsts):
            if len(set(member[0])) > 1 and all(own == member[0] for own in member):
                warnings.warn(
                    f"All {len(member)} environments of member {m} began their first {EPISODES} episodes alike, though "
                    "each began otherwise every time: they have one seed, and more of them show nothing new. Draw "
                    "from self.np_random, and seed it by reset alone.",
                    stacklevel=5,
                )
                return
