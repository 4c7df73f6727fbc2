"""Rainbow without each of its parts is its sibling, and its rows are drawn and weighed as its paper says."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from test_replay_updates import GAMMA, Batches, Own, Rows, own_numbers, rainbow

from etude.core.edit import set_values
from etude.core.population import Member
from etude.experience.prioritized import PrioritizedRows
from etude.experience.sampling import OneStep
from etude.loops.off_policy import OffPolicyLoop
from etude.tasks.control.cartpole import cartpole
from replay_toys import REPLAY, fill, small

torch.set_num_threads(1)
UNIFORM = ["sampling=uniform-rows", "sampling.batch=64"]
QUIET = ["critic.noise=none", "exploration=epsilon-greedy", "exploration.end=0.04", "exploration.over=8000"]
SINGLE = ["critic.backup.rule.double=false"]
JOINT = ["critic.head=atoms", "critic.head.low=0", "critic.head.high=100"]
MEANS = ["critic.head.head=scalar", "critic.error=huber"]


@pytest.mark.parametrize(
    ("sibling", "without"),
    [
        ("c51", [*UNIFORM, *QUIET, *SINGLE, *JOINT]),
        ("dueling-dqn", [*UNIFORM, *QUIET, *MEANS]),
        ("double-dqn", [*UNIFORM, *QUIET, "critic.head=scalar", "critic.error=huber"]),
        ("noisy-dqn", [*UNIFORM, *SINGLE, "critic.head=scalar", "critic.error=huber"]),
    ],
)
def test_without_its_other_parts_it_is_its_sibling(sibling: str, without: list[str]) -> None:
    assert set_values(REPLAY["rainbow"], without).slots() == REPLAY[sibling].slots()
    for one in (UNIFORM, QUIET, SINGLE, JOINT):
        left = [x for x in without if x not in one]
        assert left == without or set_values(REPLAY["rainbow"], left).slots() != REPLAY[sibling].slots()


def loop_of(method: Any, seeds: tuple[int, ...] = (3, 4)) -> OffPolicyLoop:
    return OffPolicyLoop(method, cartpole, [Member(s) for s in seeds], 2, 24)


@pytest.mark.slow
def test_with_one_step_it_is_the_plain_horizon() -> None:
    method = small(REPLAY["rainbow"])
    single = set_values(method, ["sampling.horizon.n=1"])
    plain = method.replace(sampling=method.sampling.replace(horizon=OneStep(gamma=GAMMA)))
    found = []
    for each in (single, plain, method):
        loop = loop_of(each)
        loop.step(), loop.step()
        found.append(loop.policy_tensors())
    assert all(torch.equal(v, found[1][k]) for k, v in found[0].items())
    assert not all(torch.equal(v, found[1][k]) for k, v in found[2].items())


def test_rows_are_drawn_by_their_divergence_and_weighed_against_it() -> None:
    """After one update a row's mass is (KL + 1e-6)^0.5; the weights after it are (N chance)^-beta over the largest."""
    method = small(REPLAY["rainbow"], heads=False)
    method = method.replace(sampling=method.sampling.replace(over=80))  # 40 rows are there: beta is half way up
    loop = loop_of(method)
    fill(loop.collector.store)
    store = loop.collector.store
    store.rows[:, 4] = (store.rows[:, 4] > 0).float()
    tensors = {k: v.clone() for k, v in loop.policy_tensors().items()}
    batches, masses = Batches(loop), torch.ones(2, 40, dtype=torch.float64)
    batch, normal = batches.next(0)
    assert batch.offers["importance"].unique().tolist() == [1.0]
    assert batch.index is not None
    for k in range(2):
        state: dict[str, Any] = {}
        rainbow(Own(tensors, k, 1), Rows(batch, k), partial(own_numbers, normal, k), 1, state)
        for place, divergence in zip(batch.index[k].tolist(), state["divergence"].tolist()):
            masses[k, place] = (divergence + 1e-6) ** 0.5
        rewards, discounts = n_steps(store.grid[k], batch.index[k].tolist())
        assert batch.rewards[k].tolist() == pytest.approx(rewards, abs=1e-5)
        assert batch.discounts is not None and batch.discounts[k].tolist() == pytest.approx(discounts, abs=1e-6)
    loop.updater.run(store, loop.updater.rates(0, 1))
    assert torch.allclose(loop.method.sampling.state["masses"], masses, rtol=1e-4)
    again = batches.next(1)[0]
    assert again.index is not None
    for k in range(2):
        weights = (40 * masses[k] / masses[k].sum())[again.index[k]] ** -0.7
        assert torch.allclose(again.offers["importance"][k].double(), weights / weights.max(), rtol=1e-4)


def n_steps(rows: torch.Tensor, places: list[int]) -> tuple[list[float], list[float]]:
    """Sums of three rewards at most, up to an end or to the newest row, and what a value after them counts."""
    rewards, discounts = [], []
    for place in places:
        total, m = 0.0, 0
        while True:
            *_, reward, live, end = rows[place + m].tolist()
            total += GAMMA**m * reward
            m += 1
            if end or m == 3 or place + m == 40:
                break
        rewards.append(total)
        discounts.append(GAMMA**m * live)
    return rewards, discounts


@pytest.mark.slow
def test_beta_rises_with_what_a_member_has_stored() -> None:
    method = small(REPLAY["rainbow"])
    assert isinstance(method.sampling, PrioritizedRows)
    seen: list[float] = []
    loop = loop_of(method.replace(sampling=method.sampling.replace(over=40)), (3,))
    part: Any = loop.method.sampling
    exponent = type(part).exponent
    object.__setattr__(part, "exponent", lambda pushed: seen.append(exponent(part, pushed)) or exponent(part, pushed))
    loop.step(), loop.step()
    wanted = [0.4 + 0.6 * min(1.0, n / 40) for n in range(14, 49, 2) for _ in range(2)]
    assert seen == pytest.approx(wanted) and seen[-1] == 1.0
