"""What is stored: nothing that is read crosses a reset, for any sequence of ends, with the ring wrapped."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from etude.core.population import Member, Population
from etude.core.transitions import Transitions
from etude.experience.sampling import NStep, OneStep, UniformRows, Window
from etude.experience.store import Store
from etude.experience.stretches import LENGTH, Stretches

CONTINUES, TERMINATED, TRUNCATED = 0, 1, 2
GAMMA = 0.5


@dataclass
class Told:
    """A stored step as the test remembers it: what was seen, what it led to, and how it ended."""

    seen: float
    led: float
    reward: float
    end: int
    environment: int


def played(ends: list[int], environments: int, capacity: int) -> tuple[Store, list[Told]]:
    """A store that was told steps whose ends are listed, environments in turn; and the steps, in order."""
    store = Store(members=1, environments=environments, capacity=capacity, shape=(1,), actions=1)
    number, now, told = 0.0, [float(1000 * e) for e in range(environments)], list[Told]()
    rounds = [ends[i : i + environments] for i in range(0, len(ends) - environments + 1, environments)]
    for each in rounds:
        seen, rewards = list(now), []
        led = [x + 1 for x in now]
        for e, end in enumerate(each):
            number += 1
            rewards.append(number)
            told.append(Told(seen[e], led[e], number, end, e))
            now[e] = led[e] if end == CONTINUES else led[e] + 100  # the next episode begins elsewhere
        column = lambda values: torch.tensor(values).view(1, environments)  # noqa: E731
        live, end = ([float(f(x)) for x in each] for f in (lambda x: x != TERMINATED, lambda x: x != CONTINUES))
        store.push(
            column(seen)[..., None], column(rewards)[..., None], column(led)[..., None], column(rewards),
            column(live), column(end),
        )  # fmt: skip
    return store, told


def expected(told: list[Told], first: int, n: int, environments: int) -> tuple[float, float, float]:
    """Sum of rewards, discount and last observation by walking along the steps of one environment."""
    total, factor, step = 0.0, 1.0, told[first]
    for k in range(n):
        place = first + k * environments
        if place >= len(told):
            break
        step = told[place]
        total += factor * step.reward
        factor *= GAMMA
        if step.end != CONTINUES:
            break
    return total, 0.0 if step.end == TERMINATED else factor, step.led


@settings(max_examples=60, deadline=None)
@given(
    ends=st.lists(st.sampled_from([CONTINUES] * 3 + [TERMINATED, TRUNCATED]), min_size=6, max_size=40),
    environments=st.integers(1, 3), capacity=st.integers(4, 24), n=st.integers(1, 4),
)  # fmt: skip
def test_no_row_crosses_a_reset(ends: list[int], environments: int, capacity: int, n: int) -> None:
    store, told = played(ends, environments, capacity)
    kept = told[-store.size :] if store.size < len(told) else told
    index = torch.arange(store.size)[None]
    horizon = OneStep(gamma=GAMMA) if n == 1 else NStep(gamma=GAMMA, n=n)
    batch = horizon.read(store, index)
    assert batch.next_observations is not None and batch.discounts is not None
    by_reward = {t.reward: i for i, t in enumerate(kept)}
    rows = store.read(index)
    assert sorted(rows.rewards[0].tolist()) == [t.reward for t in kept]  # all that is kept, nothing else
    for r in range(store.size):
        first = by_reward[float(rows.rewards[0, r])]
        total, discount, led = expected(kept, first, n, environments)
        assert float(batch.observations[0, r, 0]) == kept[first].seen
        assert float(batch.actions[0, r, 0]) == kept[first].reward
        assert float(batch.rewards[0, r]) == pytest.approx(total)
        assert float(batch.discounts[0, r]) == pytest.approx(discount)
        assert float(batch.next_observations[0, r, 0]) == led


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    ends=st.lists(st.sampled_from([CONTINUES] * 3 + [TERMINATED, TRUNCATED]), min_size=6, max_size=40),
    environments=st.integers(1, 3), capacity=st.integers(4, 24), length=st.integers(1, 6),
)  # fmt: skip
def test_no_window_crosses_a_reset(ends: list[int], environments: int, capacity: int, length: int) -> None:
    store, told = played(ends, environments, capacity)
    kept = told[-store.size :] if store.size < len(told) else told
    index = torch.arange(store.size)[None]
    batch = Window(gamma=GAMMA, length=length).read(store, index)
    assert batch.next_observations is not None and batch.discounts is not None and batch.weights is not None
    by_reward, firsts = {t.reward: i for i, t in enumerate(kept)}, store.read(index).rewards[0].tolist()
    for r, reward in enumerate(firsts):
        walked = [kept[by_reward[reward]]]
        while walked[-1].end == CONTINUES and (place := by_reward[walked[-1].reward] + environments) < len(kept):
            walked.append(kept[place])
        walked = walked[:length]
        assert batch.weights[0, r].tolist() == [1.0] * len(walked) + [0.0] * (length - len(walked))
        walked += [walked[-1]] * (length - len(walked))  # nothing of another episode, not even where it counts 0
        assert batch.rewards[0, r].tolist() == batch.actions[0, r, :, 0].tolist() == [t.reward for t in walked]
        assert batch.observations[0, r, :, 0].tolist() == [t.seen for t in walked]
        assert batch.next_observations[0, r, :, 0].tolist() == [t.led for t in walked]
        assert batch.terminated[0, r].tolist() == [t.end == TERMINATED for t in walked]
        assert batch.truncated[0, r].tolist() == [t.end == TRUNCATED for t in walked]
        assert batch.discounts[0, r].tolist() == [GAMMA * (t.end != TERMINATED) for t in walked]


def test_rows_are_drawn_uniformly_and_by_every_member_alone() -> None:
    def draws(seeds: list[int], updates: int) -> list[Tensor]:
        store = Store(len(seeds), 1, 10, (1,), 1)
        for t in range(10):
            x = torch.full((len(seeds), 1, 1), float(t))
            store.push(x, x, x, x[..., 0], x[..., 0], x[..., 0])
        stretches = Stretches(Population([Member(s) for s in seeds]), "learn")
        part = UniformRows(batch=50, horizon=OneStep(gamma=GAMMA))
        return [part.draw(store, stretches.at(u)).observations[..., 0] for u in range(updates)]

    both, alone = draws([3, 4], LENGTH + 3), draws([4], LENGTH + 3)
    assert all(torch.equal(a[1], b[0]) for a, b in zip(both, alone, strict=True))
    counts = torch.stack(both)[:, 0].flatten().long().bincount(minlength=10).double()
    assert float(((counts - counts.mean()) ** 2 / counts.mean()).sum()) < 27.9  # chi squared, 9 degrees: p = 0.001
    assert not torch.equal(both[0][0], both[0][1])


def test_numbers_do_not_depend_on_when_they_were_asked() -> None:
    population = Population([Member(0)])

    def normal(generator: torch.Generator, count: int) -> Tensor:
        return torch.randn(count, 2, generator=generator)

    once = Stretches(population, "learn")
    in_order = [once.at(t)("noise", normal).clone() for t in range(LENGTH + 2)]
    again = Stretches(population, "learn")
    for t in (LENGTH + 1, 5, LENGTH):
        assert torch.equal(again.at(t)("noise", normal), in_order[t])
    assert not torch.equal(in_order[0], in_order[1])


def test_a_copied_row_ends_where_it_stands() -> None:
    store, _ = played([CONTINUES] * 6, 1, 8)
    store.copy_row(0, 0, 3)
    batch: Transitions = NStep(gamma=GAMMA, n=3).read(store, torch.tensor([[3, 2]]))
    assert batch.rewards.tolist() == [[1.0, 3.0 + GAMMA * 1.0]]
