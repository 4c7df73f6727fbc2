"""How likely those who made logs were to do what they did: as the logs say, or as a policy says that imitates them."""

from __future__ import annotations

import numpy as np
import torch
from gymnasium import spaces

from etude.core.errors import DataError
from etude.core.learners import Learning
from etude.core.population import Member
from etude.core.registry import get_method
from etude.core.streams import Stream
from etude.evaluation.off_policy.episodes import Numbers
from etude.evaluation.off_policy.policies import Judged
from etude.experience.logs.table import Logs
from etude.loops.off_policy import BLOCK, OffPolicyLoop
from etude.objectives.clone import Clone, Likelihood
from etude.optimizers.adam import Adam
from etude.policies.control.networks import MLP
from etude.policies.control.replay import StochasticPolicy
from etude.tasks.control.logged import LoggedTask

UPDATES = 2000
"""Of the policy that imitates."""


def behaviour_logp(task: LoggedTask, logs: Logs, seed: int) -> tuple[Numbers, str]:
    """log mu(a|s) [N] of what was done, and a sentence on where it comes from.

    Raises: DataError for log-probabilities of choices above 0.
    """
    if logs.behaviour_logp is None:
        return imitated(task, logs, seed), (
            f"{logs.where} does not say how likely its actions were: that is said by bc, fitted to the same rows "
            f"({UPDATES:,} updates), so that weights are estimates too."
        )
    if isinstance(logs.spaces.action_space, spaces.Discrete) and logs.behaviour_logp.max() > 1e-5:
        raise DataError(
            f"{logs.where} has behaviour_logp up to {logs.behaviour_logp.max():.3g}, and the logarithm of a chance is "
            "at most 0: give natural logarithms."
        )
    return logs.behaviour_logp.astype(np.float64), "How likely the actions of the logs were is a column of them."


def imitated(task: LoggedTask, logs: Logs, seed: int) -> Numbers:
    """The same by `bc` with a distribution: a chance of every choice, or a normal."""
    network = MLP(hidden=(64, 64), activation="relu")
    cloned = get_method("bc").replace(
        policy=StochasticPolicy(network=network, learning=Learning(Adam(lr=1e-3))), actor=(Clone(error=Likelihood()),)
    )
    steps = -(-UPDATES // BLOCK)
    loop = OffPolicyLoop(cloned, task, [Member(Stream(seed).split("behaviour").key % 2**31)], steps)
    try:
        for _ in range(steps):
            loop.step()
        found = Judged(loop, 0).on(logs, torch.Generator().manual_seed(seed)).logp
    finally:
        loop.close()
    assert found is not None
    return found
