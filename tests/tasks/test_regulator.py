"""The linear-quadratic regulator: its gain by another way, its values by playing, its gradient by differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from etude.core.errors import ConfigError
from etude.tasks.control.regulator import Regulator

GAMMA = 0.9


def riccati(task: Regulator, gamma: float) -> tuple[np.ndarray, np.ndarray]:
    """The discounted Riccati equation iterated from 0: value and gain of ever more steps ahead."""
    d = task.dimensions
    a = np.array([[1.0 if i == j else task.coupling if j == i + 1 else 0.0 for j in range(d)] for i in range(d)])
    b, r = np.diag([0.5] * d), task.effort * np.eye(d)
    value = np.zeros((d, d))
    for _ in range(2000):
        inner = np.linalg.inv(r + gamma * b.T @ value @ b)
        value = np.eye(d) + gamma * a.T @ (value - gamma * value @ b @ inner @ b.T @ value) @ a
    return value, gamma * np.linalg.inv(r + gamma * b.T @ value @ b) @ b.T @ value @ a


@pytest.mark.parametrize("dimensions", [1, 2, 5])
@pytest.mark.parametrize("gamma", [0.5, 0.9, 0.99])
def test_the_gain_solves_the_riccati_equation(dimensions: int, gamma: float) -> None:
    task = Regulator(dimensions=dimensions)
    value, gain = riccati(task, gamma)
    assert np.allclose(task.gain(gamma), gain, atol=1e-9)
    assert np.allclose(task.worth(gain, gamma), value, atol=1e-8)


def test_one_dimension_has_a_quadratic_equation() -> None:
    """v = 1 + g v - (g v / 2)^2 / (r + g v / 4), so g v^2 / 4 + v (r (1 - g) - g / 4) - r = 0."""
    r, g = 0.25, GAMMA
    a, b = g / 4, r * (1 - g) - g / 4
    v = (-b + (b**2 + 4 * a * r) ** 0.5) / (2 * a)
    gain = g * v / 2 / (r + g * v / 4)
    assert Regulator(dimensions=1, effort=r).gain(g).item() == pytest.approx(gain, abs=1e-12)


def played(task: Regulator, gain: np.ndarray, count: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """First states [count, d], and what -gain x earns from them, discounted, [count]."""
    vector: Any = task.replace(limit=steps).make([0], count)
    vector.reset()
    first, earned = vector.states[0].copy(), np.zeros(count)
    for t in range(steps):
        step = vector.step(-(vector.states @ gain.T))
        earned += GAMMA**t * step.rewards[0]
    return first, earned


def test_the_best_gain_earns_what_it_is_worth_and_others_less() -> None:
    task = Regulator()
    gain = task.gain(GAMMA)
    worth = task.worth(gain, GAMMA)
    first, earned = played(task, gain, 20, 200)
    assert np.allclose(earned, -np.einsum("ni,ij,nj->n", first, worth, first), rtol=1e-5)
    for change in (np.eye(2), np.eye(2)[::-1], np.array([[0, 1], [0, 0]])):
        for sign in (-0.2, 0.2):
            assert (played(task, gain + sign * change, 20, 200)[1] < earned).all()


def test_wind_costs_what_the_trace_says() -> None:
    task = Regulator(wind=0.3)
    gain = task.gain(GAMMA)
    worth = task.worth(gain, GAMMA)
    first, earned = played(task, gain, 1500, 150)
    away = earned + np.einsum("ni,ij,nj->n", first, worth, first) + task.in_the_wind(worth, GAMMA)
    assert abs(away.mean()) < 4 * away.std() / 1500**0.5 and task.in_the_wind(worth, GAMMA) > 0.3
    assert np.array_equal(gain, Regulator().gain(GAMMA))


def test_the_gradient_in_the_actions_is_that_of_the_value() -> None:
    """By central differences of r + gamma V, which are exact of a parabola."""
    task = Regulator(dimensions=3)
    random = np.random.default_rng(0)
    x, u, gain = random.normal(size=(7, 3)), random.normal(size=(7, 3)), 0.5 * np.eye(3)
    worth = task.worth(gain, GAMMA)

    def q(u: np.ndarray) -> np.ndarray:
        after = x @ task.drift().T + 0.5 * u
        cost: np.ndarray = (x**2).sum(-1) + 0.25 * (u**2).sum(-1) + GAMMA * ((after @ worth) * after).sum(-1)
        return -cost

    numeric = np.stack([(q(u + e) - q(u - e)) / 2 for e in np.eye(3)], -1)
    assert np.allclose(task.action_gradient(x, u, worth, GAMMA), numeric, atol=1e-10)
    best = task.worth(task.gain(GAMMA), GAMMA)
    assert np.allclose(task.action_gradient(x, -x @ task.gain(GAMMA).T, best, GAMMA), 0, atol=1e-9)


def test_actions_are_kept_within_their_bounds() -> None:
    vector: Any = Regulator(dimensions=1, limit=3).make([0], 1)
    vector.reset()
    vector.states = np.array([[[3.0]]])
    step = vector.step(np.array([[[-9.0]]], np.float32))
    assert step.observations.item() == 2.0 and step.rewards.item() == -(9 + 0.25 * 4) and not step.terminated.any()


def test_fields_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match="effort must be a number above 0, got 0"):
        Regulator(effort=0.0)
