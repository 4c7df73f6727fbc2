"""What acts in control is what learns: fingerprints, a bound that follows the noise, its floor."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from etude.core.errors import InvariantError
from etude.core.population import Member
from etude.core.registry import get_method
from etude.loops.noise import FLOOR, Noise
from etude.loops.on_policy import OnPolicyLoop
from etude.optimizers.adam import AdamW
from etude.policies.control.networks import MLP
from etude.policies.control.observations import NormalizeObservations
from etude.tasks.control.pendulum import pendulum

torch.set_num_threads(1)
SLOW = 1e-4
"""A learning rate at which one update changes log-probabilities by less than 2e-3 nats on average."""


def control(rate: float = SLOW, steps: int = 64) -> OnPolicyLoop:
    found: Any = get_method("reinforce", "control")
    found = found.replace(
        policy=found.policy.replace(network=MLP(hidden=(16,)), observations=(NormalizeObservations(),)),
        experience=found.experience.replace(environments=2, steps=steps),
        optimizer=AdamW(lr=rate),
    )
    return OnPolicyLoop(found, pendulum, [Member(0), Member(1), Member(7)], 1000)


def lagging(updates: int) -> OnPolicyLoop:
    """A run whose actor stays behind by some updates from here on; the normaliser's moments are those of today."""
    loop = control()
    for _ in range(3):
        loop.step()
    old = copy.deepcopy(loop.actor)
    for _ in range(updates):
        loop.step()
    for mine, theirs in zip(old.buffers(), loop.actor.buffers(), strict=True):
        mine.copy_(theirs)
    loop.collector.actor = loop.collector.player.actor = old
    return loop


@pytest.mark.slow
def test_an_actor_one_update_old_is_caught_by_its_fingerprint() -> None:
    loop = lagging(1)
    with pytest.raises(InvariantError, match="What acts does not hold the policy's weights and moments after 4 upd"):
        loop.step()
    loop.collector.actor.load_state_dict(loop.actor.state_dict())
    loop.step()


def test_an_actor_with_other_moments_is_caught_by_its_fingerprint() -> None:
    loop = lagging(0)
    next(loop.collector.actor.buffers()).add_(1.0)
    with pytest.raises(InvariantError, match="weights and moments after 3 updates"):
        loop.step()


@pytest.mark.slow
def test_an_actor_one_update_old_is_caught_by_the_bound_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = lagging(1)
    monkeypatch.setattr(loop.updater, "check_acting", lambda actor, number: None)
    before = loop.parameters.values.clone()
    with pytest.raises(InvariantError, match=r"differ by \d\S* nats on average .* at most 2e-05 is rounding") as caught:
        loop.step()
    gap = float(str(caught.value).partition("differ by ")[2].split()[0])
    assert gap < 2e-3, "a bound that is the same for every network would have let it pass"
    assert torch.equal(before, loop.parameters.values), "nothing was updated"


@pytest.mark.slow
def test_one_member_that_is_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = lagging(0)
    monkeypatch.setattr(loop.updater, "check_acting", lambda actor, number: None)
    acting = loop.collector.actor
    acting.log_std.data[1] += 1e-4
    with pytest.raises(InvariantError, match="Fresh actions of member 1 "):
        loop.step()


def test_a_clean_run_records_gap_and_bound_for_each_member() -> None:
    loop = control()
    found = [loop.step().members for _ in range(4)]
    assert all(len(m["logp_gap"]) == 3 for m in found)
    assert all(gap <= bound for m in found for gap, bound in zip(m["logp_gap"], m["logp_gap_bound"]))
    assert found[0]["logp_gap_bound"] == [2e-3] * 3 and max(found[3]["logp_gap_bound"]) < 1e-3


def rounded(loop: OnPolicyLoop) -> None:
    """Let log-probabilities of acting be computed in float64, whose rounding is another than that of learning."""
    collect = loop.collector.collect

    def other(number: int, critic: Any) -> Any:
        batch = collect(number, critic)
        flat, actor = batch.flat(), copy.deepcopy(loop.actor).double()
        with torch.no_grad():
            exact = actor.distribution.logp(actor(actor.see(flat.observations).double()), flat.actions.double())
        return batch.replace(behaviour_logp=exact.view_as(batch.rewards))

    loop.collector.collect = other  # type: ignore[method-assign]


def deviations(loop: OnPolicyLoop, each: list[float]) -> list[dict[str, list[float]]]:
    """Steps, with the policy's standard deviation set before each: what a policy that grows sure of itself does."""
    found = []
    for log_std in each:
        loop.actor.log_std.data.fill_(log_std)
        found.append(loop.step().members)
    return found


SHARPER = [-0.125 * t for t in range(65)]
"""Down to a deviation of 3e-4, which makes the rounding of an action's distance from its mean some 3,000 times it."""


@pytest.mark.slow
def test_a_sharpening_policy_does_not_stop() -> None:
    loop = control(rate=1e-9, steps=16)
    rounded(loop)
    loop.actor.head.bias.data.fill_(1.0)  # what is rounded
    found = deviations(loop, SHARPER)
    first, last = found[0]["logp_gap"], found[-1]["logp_gap"]
    assert all(0 < a < 1e-6 and b > FLOOR[torch.float32] for a, b in zip(first, last)), "rounding grew"


@pytest.mark.slow
def test_a_policy_that_turns_back_stops_only_without_the_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding that had become small is 30 times larger within a step."""
    there_and_back = [8.0] * 30 + [0.0]

    def turned() -> OnPolicyLoop:
        loop = control(rate=1e-9)
        collect, count = loop.collector.collect, iter(there_and_back)

        def quiet(number: int, critic: Any) -> Any:
            batch = collect(number, critic)
            gap = 1e-7 * 2.0 ** -next(count)
            return batch.replace(behaviour_logp=batch.behaviour_logp.double() + gap)

        loop.collector.collect = quiet  # type: ignore[method-assign]
        return loop

    loop = turned()
    for _ in there_and_back:
        loop.step()
    monkeypatch.setitem(FLOOR, torch.float32, 0.0)
    loop = turned()
    with pytest.raises(InvariantError, match="is rounding"):
        for _ in there_and_back:
            loop.step()


def test_noise_of_members_is_each_ones_own() -> None:
    """Weights leave out gaps that do not count; a member's bound is that of noise measured for it alone."""
    gaps: Tensor = torch.tensor([[1e-4, 3e-4, 9.0], [2e-4, 2e-4, 2e-4]])
    weights = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    together = Noise(2)
    together.observe(gaps, weights)
    found = together.bounds([2, 3], torch.float32)
    assert found[0] == pytest.approx(3 * 2e-4 + 5 * 1e-4 / 2**0.5, rel=1e-6)
    assert found[1] == pytest.approx(3 * 2e-4, rel=1e-4)
    for k, (size, bound) in enumerate(zip((2, 3), found)):
        alone = Noise()
        alone.observe(gaps[k, :size])
        assert alone.bound(size, torch.float32) == pytest.approx(bound, rel=1e-12)


@pytest.mark.slow
def test_the_bound_survives_a_resume(tmp_path: Path) -> None:
    loop, again = control(), control()
    rounded(loop)
    rounded(again)
    loop.step()
    loop.save(tmp_path)
    again.load(tmp_path)
    wanted, found = loop.step().members, again.step().members
    assert found["logp_gap_bound"] == wanted["logp_gap_bound"] and max(found["logp_gap_bound"]) < 2e-3
