"""Numbers shared between two bins: their mean is the number, whatever it is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.core.errors import ConfigError
from etude.core.population import PerMember
from etude.learners.heads import TwoHot

LINE = np.linspace(-10, 10, 65)
BINS = np.sign(LINE) * (np.exp(np.abs(LINE)) - 1)
HEAD = TwoHot()


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(number=st.floats(BINS[0], BINS[-1]))
def test_the_mean_of_the_two_is_the_number(number: float) -> None:
    chances = HEAD.two_hot(torch.tensor([[number]], dtype=torch.float64))
    found = chances[0, 0].numpy()
    places = found.nonzero()[0]
    assert found.min() >= 0 and found.sum() == pytest.approx(1, abs=1e-12)
    assert len(places) <= 2 and places[-1] - places[0] <= 1
    assert HEAD.decode(chances).item() == pytest.approx(number, rel=1e-12, abs=1e-12)
    assert float((found * BINS).sum()) == pytest.approx(number, rel=1e-12, abs=1e-12)


def test_numbers_at_and_beyond_the_bins() -> None:
    numbers = torch.tensor([[BINS[0] * 2, BINS[0], BINS[7], 0.0, BINS[-1], BINS[-1] * 3]], dtype=torch.float64)
    places = [0, 0, 7, 32, 64, 64]
    assert torch.allclose(HEAD.two_hot(numbers)[0], torch.eye(65, dtype=torch.float64)[places], atol=1e-12)


def test_a_critic_may_say_its_values_so() -> None:
    """The target is the reward and the discounted mean of what is said, shared between two bins."""
    outputs = torch.linspace(-1, 1, 65, dtype=torch.float64)[None, None]
    chances = np.exp(outputs.numpy()[0, 0]) / np.exp(outputs.numpy()[0, 0]).sum()
    reward, discount = torch.tensor([[3.0]]).double(), torch.tensor([[0.001]]).double()
    target = HEAD.target(reward, discount, outputs)
    assert HEAD.mean(outputs).item() == pytest.approx(float((chances * BINS).sum()), rel=1e-12)
    assert float((target[0, 0].numpy() * BINS).sum()) == pytest.approx(3.0 + 0.001 * float((chances * BINS).sum()))


def test_bins_differ_between_members() -> None:
    own = TwoHot(bins=5).bind()
    own.settle("high", PerMember([2.0, 4.0]))
    both = own.two_hot(torch.full((2, 3), 1.5))
    for k, high in enumerate((2.0, 4.0)):
        assert torch.equal(both[k], TwoHot(bins=5, high=high).two_hot(torch.full((1, 3), 1.5))[0])
    assert not torch.equal(both[0], both[1])


def test_bins_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"at least two bins from low to high, got 65 from 1\.0 to 1\.0"):
        TwoHot(low=1.0, high=1.0)
