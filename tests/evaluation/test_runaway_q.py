"""Fitted Q evaluation of a policy that does what its logs never show: what is cut, and that it is told."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from etude.core.population import FlatParameters, Member, Population
from etude.core.streams import Stream
from etude.evaluation.off_policy.episodes import Episodes, Numbers
from etude.evaluation.off_policy.fqe import FQE, QNetwork, _Fit
from etude.evaluation.off_policy.q_rows import Acts, baseline, limits, rows_of
from walks import EACH, GAMMA, STEPS, walks


@pytest.mark.parametrize(
    ("rewards", "ends", "least", "most"),
    [([[-1.0, 3.0]], False, -1.0, 3.0), ([[1.0, 3.0]], False, 1.0, 3.0), ([[1.0, 3.0]], True, 0.0, 3.0),
     ([[-2.0, -1.0]], True, -2.0, 0.0), ([[0.0, 0.0]], False, 0.0, 0.0)],
)  # fmt: skip
def test_limits_by_hand(rewards: list[list[float]], ends: bool, least: float, most: float) -> None:
    """Of two steps at a discount of a half, 1.5 in all."""
    place = np.array([[0, 1]])
    episodes = Episodes(place, place >= 0, np.array([ends]), np.array(rewards))
    assert limits(episodes, 0.5) == pytest.approx((1.5 * least, 1.5 * most))


@pytest.mark.parametrize(("guess", "bound"), [(1e6, 1), (-1e6, 0)])
def test_a_target_beyond_the_limits_is_the_limit(guess: float, bound: int) -> None:
    """What is learned towards is r + gamma (limit - b) where something followed, r where nothing did."""
    episodes, acts = walks(np.sign)
    line, scale = baseline(episodes, GAMMA)
    rows = rows_of(episodes, acts, GAMMA, line, scale)
    members = Population([Member(0), Member(1)])
    network = QNetwork(FQE().network, members, 3)
    parameters = FlatParameters({"q": network})
    slow = parameters.shared(network)
    behind = FlatParameters({"q": slow})
    behind.values.copy_(parameters.values)
    with torch.no_grad():
        slow.get_submodule("head").get_parameter("bias").fill_(guess)
    index = torch.stack([torch.arange(STEPS), torch.arange(STEPS, 2 * STEPS)])
    found = _Fit(parameters, network, slow, rows, index, torch.zeros(2, STEPS), GAMMA).gradient()
    assert found["cut"].tolist() == [pytest.approx((STEPS - 1) / STEPS)] * 2
    last = np.arange(2 * STEPS) % STEPS == STEPS - 1
    time = np.arange(2 * STEPS) % STEPS
    low, high = limits(episodes, GAMMA)  # nobody earns more than 0, or as far again
    assert high < 0 and low < high
    following = np.where(last, 0.0, (low + low, high - low)[bound])
    target = (episodes.rewards[:2].reshape(-1) + GAMMA * following - line[time]) / scale
    given = parameters.gradient.clone()
    said = network(torch.cat([rows.x[index], acts.actions[index]], -1))
    parameters.differentiate((said - torch.as_tensor(target).float().view(2, STEPS)).square().mean(1))
    torch.testing.assert_close(given, parameters.gradient, rtol=1e-4, atol=1e-4 * float(given.abs().max()))


@pytest.mark.slow
def test_who_leaves_the_logs_is_told_that_the_number_means_nothing() -> None:
    fqe, said = FQE(resamples=2, updates=600), {}
    policies: dict[str, Callable[[Numbers], Numbers]] = {"near": lambda x: -0.3 * x, "far": np.sign}
    for name, policy in policies.items():
        episodes, acts = walks(policy)
        weights = np.ones((EACH, STEPS))
        fitted = fqe.fit(episodes, acts, fqe.counts(EACH, Stream(0)), GAMMA, Stream(1))
        said[name] = fitted.estimate().reason, fitted.doubly_robust(weights).reason
        assert (np.abs(fitted.estimates()) < -2 * limits(episodes, GAMMA)[0]).all()
    assert said["near"] == ("", "")
    assert all("% of the targets of Q lay beyond what" in reason for reason in said["far"])


@pytest.mark.parametrize(("value", "doubted"), [(-0.04, False), (1.04, False), (-0.06, True), (1.06, True)])
def test_an_estimate_that_cannot_be_says_so(value: float, doubted: bool) -> None:
    """Rewards of one step are 0 to 1: a twentieth beyond is an error of the fit, and more is none."""
    place = np.arange(20)[:, None]
    episodes = Episodes(place, place >= 0, np.zeros(20, bool), np.linspace(0.0, 1.0, 20)[:, None])
    column = torch.zeros(20, 1)
    acts = Acts(column, column, column[:, None], column + 1, column, column[:, None], column + 1)
    fitted = FQE(resamples=2, updates=1).fit(episodes, acts, np.ones((3, 20), int), GAMMA, Stream(0))
    fitted.starts = lambda: np.full((3, 20), value)  # type: ignore[method-assign]
    said = fitted.estimate().reason
    assert said.startswith("it lies beyond what rewards like those of the logs add up to (0 to 1)") == doubted
    assert bool(said) == doubted
