"""`target-kl`: when Stable-Baselines3 would stop, each member stops, and stays as it is bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from etude.core.edit import set_values, stack
from etude.core.errors import ConfigError
from etude.core.method import Method
from etude.core.population import Member
from etude.core.registry import get_method
from etude.core.step_slots import StepRegularizer
from etude.loops.on_policy import OnPolicyLoop
from etude.regularizers.target_kl import TargetKL
from etude.tasks.control.cartpole import cartpole
from solo_runs import assert_members_are_alone

torch.set_num_threads(1)
SEEN: list[tuple[np.ndarray, dict[str, Tensor]]] = []
LOOP: list[OnPolicyLoop] = []
TARGET = 0.001


class Watching(StepRegularizer):
    """Writes down, before each step, Stable-Baselines3's estimate (its own lines, in numpy) and what could change."""

    def __call__(self, batch: Any, policy: Any) -> Tensor:
        return torch.zeros_like(batch.behaviour_logp)

    def enough(self, batch: Any, policy: Any) -> Tensor | None:
        log_ratio = (policy.logp - batch.behaviour_logp).detach().numpy()
        approx_kl_div = np.mean((np.exp(log_ratio) - 1) - log_ratio, axis=1)
        SEEN.append((approx_kl_div, stand(LOOP[0])))
        return None


def stand(loop: OnPolicyLoop) -> dict[str, Tensor]:
    """Weights and the optimizer's state."""
    state = {k: v.clone() for k, v in loop.updater.optimizer.tensors().items()}
    return {"weights": loop.parameters.values.clone(), **state}


def method(*regularizers: StepRegularizer) -> Method:
    ppo: Any = get_method("ppo", "control")
    return ppo.replace(  # type: ignore[no-any-return]
        experience=ppo.experience.replace(environments=2, steps=32), epochs=5, minibatches=4,
        regularizers=(*ppo.regularizers, *regularizers),
    )  # fmt: skip


def after(found: Method) -> tuple[dict[str, Tensor], dict[str, list[float]]]:
    """One update of three members."""
    SEEN.clear()
    LOOP[:] = [OnPolicyLoop(found, cartpole, [Member(s) for s in range(3)], 4)]
    report = LOOP[0].step()
    return stand(LOOP[0]), report.members


@pytest.mark.slow
def test_it_stops_where_stable_baselines_would_and_everything_stays_as_it_was() -> None:
    whole, _ = after(method(Watching()))
    estimates = np.stack([kl for kl, _ in SEEN], 1)  # [P, steps]
    moments = [state for _, state in SEEN] + [whole]
    expected = []
    for member in estimates:
        for steps, approx_kl_div in enumerate(member):  # noqa: B007
            if approx_kl_div > 1.5 * TARGET:
                break
        else:
            steps = len(member)
        expected.append(steps)
    assert len(set(expected)) > 1 and 1 < min(expected) < 20, "the case must tell members apart"
    stopped, metrics = after(method(TargetKL(target=TARGET)))
    assert metrics["optimizer_steps"] == expected
    for k, steps in enumerate(expected):
        for name, value in moments[steps].items():
            assert torch.equal(stopped[name][k], value[k]), f"{name} of member {k}"


@pytest.mark.slow
def test_a_target_that_is_never_reached_changes_no_number() -> None:
    plain, mine = after(method()), after(method(TargetKL(target=1e6)))
    assert all(torch.equal(value, mine[0][name]) for name, value in plain[0].items())
    assert mine[1]["optimizer_steps"] == [20.0] * 3


@pytest.mark.slow
def test_each_member_stops_for_itself() -> None:
    mine = method(TargetKL(target=TARGET))
    path = next(path for path, part in mine.parts().items() if isinstance(part, TargetKL))
    members = [Member(0), Member(1), Member(2, {f"{path}.target": 0.004})]
    assert_members_are_alone(mine, cartpole, members, (1, 3))


def test_it_is_stacked_by_name_and_refused_where_nothing_would_stop() -> None:
    stacked: Any = set_values(stack(get_method("ppo", "control"), "target-kl"), ["regularizers.target-kl.target=0.03"])
    assert stacked.regularizers[-1] == TargetKL(target=0.03)
    with pytest.raises(ConfigError, match=r"TargetKL.*ends epochs of small steps, and TrustRegion takes one within"):
        stack(get_method("trpo"), "target-kl").check()
    with pytest.raises(ConfigError, match=r"TargetKL\.target must be a number above 0, got 0"):
        TargetKL(target=0.0)
