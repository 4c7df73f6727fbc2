"""Every method of control that learns from its own rollouts learns the cart-pole: a few members, seconds.

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
BUDGETS = {"reinforce": (24_000, 30.0), "ppo": (24_000, 60.0), "policy-gradient-guide": (12_288, 32.0)}
"""Steps of a member, and the return that they must lead to, where they are not the usual ones."""
ROLLOUTS = {"policy-gradient-guide": 512}
"""Steps of a rollout, where a method's own are more than fit into seconds."""
MEMBERS = {"policy-gradient-guide": 2}
"""Seeds, where four take long."""
ELSEWHERE = {"ppo-continuous"}  # a configuration for continuous actions


@pytest.mark.parametrize("name", [m for m in CONTROL if m not in ELSEWHERE])
def test_it_learns(name: str) -> None:
    method = get_method(name, "control")
    rollout = method.experience
    method = method.replace(experience=rollout.replace(steps=ROLLOUTS.get(name, rollout.steps)))
    budget, bound = BUDGETS.get(name, (10_000, 40.0))
    steps = budget // (method.experience.environments * method.experience.steps)
    loop = OnPolicyLoop(method, cartpole, [Member(s) for s in range(MEMBERS.get(name, 4))], steps)
    returns = [loop.step().metrics.get("return", 0.0) for _ in range(steps)]
    assert returns[-1] > bound, returns
