"""The adaptive penalty in a run: it learns from the KL that each update led to, per member, and resumes exactly."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from control_toys import control_loop
from etude.core.method import Method
from etude.core.registry import get_method
from etude.core.transitions import Transitions
from etude.objectives.surrogate import Surrogate
from etude.regularizers.behaviour_kl import AdaptiveBehaviourKL


def method() -> Method:
    found = get_method("ppo", "control")
    return found.replace(
        experience=found.experience.replace(environments=2, steps=16),
        objective=Surrogate(),
        regularizers=(AdaptiveBehaviourKL(target=0.01),),
        epochs=3,
    )


def test_beta_follows_the_kl_that_the_update_left() -> None:
    loop, seen = control_loop(method(), [0, 1, 2], steps=6), []
    run = loop.updater.run

    def watched(batch: Transitions, number: int, rate: float) -> dict[str, Tensor]:
        found = run(batch, number, rate)
        with torch.no_grad():
            now = loop.actor(loop.actor.see(batch.observations))
            seen.append(loop.actor.distribution.kl(batch.behaviour, now).mean(1))
        torch.testing.assert_close(found["kl"], seen[-1], atol=1e-7, rtol=1e-5)
        return found

    loop.updater.run = watched
    beta = torch.ones(3)
    for _ in range(4):
        loop.step()
        beta = torch.where(seen[-1] < 0.01 / 1.5, beta / 2, torch.where(seen[-1] > 0.015, beta * 2, beta))
        assert torch.equal(loop.method.regularizers[0].state["beta"][:, 0], beta)
    assert len(set(beta.tolist())) > 1 or float(beta[0]) != 1.0


@pytest.mark.slow
def test_a_resumed_run_keeps_its_betas(tmp_path: Path) -> None:
    whole, first, second = (control_loop(method(), [0, 1], steps=6) for _ in range(3))
    for _ in range(4):
        whole.step()
    first.step(), first.step()
    first.save(tmp_path)
    second.load(tmp_path)
    second.step(), second.step()
    assert torch.equal(whole.parameters.values, second.parameters.values)
    assert torch.equal(whole.method.regularizers[0].state["beta"], second.method.regularizers[0].state["beta"])


@pytest.mark.slow
def test_members_are_penalised_alone() -> None:
    together, alone = control_loop(method(), [3, 4, 5], steps=6), control_loop(method(), [4], steps=6)
    for _ in range(3):
        together.step(), alone.step()
    assert torch.equal(together.parameters.values[1], alone.parameters.values[0])
