"""What learns from its own rollouts learns the cart-pole: a few members, seconds.

An untrained policy balances for about 22 steps. The bounds are about half of the measured gain; with the sign of the
advantages turned round a policy stays below 15.
"""

from __future__ import annotations

import pytest

from etude.core.kinds import RolloutMethod
from etude.core.population import Member
from etude.core.registry import compositions, files, get_method
from etude.loops.on_policy import OnPolicyLoop
from etude.tasks.control.cartpole import cartpole

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
CONTROL = [name for name in sorted(files("methods")) if any(isinstance(m, RolloutMethod) for m in compositions(name))]
BUDGETS = {"reinforce": (24_000, 30.0), "ppo": (24_000, 60.0)}
"""Steps of a member, at most, and the return above which they must stay, where they are not the usual ones."""
ELSEWHERE = {"ppo-continuous", "policy-gradient-guide", "gae", "npg", "words-as-beacons"}
"""Continuous actions, sub-goals, and what is put together as others here; `test_each_learns.py` has every method."""


@pytest.mark.parametrize("name", [m for m in CONTROL if m not in ELSEWHERE])
def test_it_learns(name: str) -> None:
    method = get_method(name, "control")
    budget, bound = BUDGETS.get(name, (10_000, 40.0))
    steps = budget // (method.experience.environments * method.experience.steps)
    loop = OnPolicyLoop(method, cartpole, [Member(s) for s in range(4)], steps)
    returns = list[float]()
    while len(returns) < steps and (len(returns) < 3 or min(returns[-3:]) <= bound):
        returns.append(loop.step().metrics.get("return", 0.0))
    assert min(returns[-3:]) > bound, returns
