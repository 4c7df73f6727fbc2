"""Random streams: named, independent, restored exactly."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from etude.core.streams import Stream

names = st.text(max_size=5) | st.integers(0, 1000)
paths = st.lists(names, max_size=4).map(tuple)


@given(st.integers(0, 2**31), paths, paths)
def test_equal_addresses_and_only_they_have_equal_keys(seed: int, a: tuple, b: tuple) -> None:
    one, other = Stream(seed).split(*a), Stream(seed).split(*b)
    assert (one.key == other.key) == (a == b)
    assert one.key != Stream(seed + 1).split(*a).key
    assert 0 <= one.key < 1 << 63


def test_a_number_and_its_text_are_different_names_but_numpy_integers_are_numbers() -> None:
    root = Stream(0)
    assert root.split(3).key != root.split("3").key
    assert root.split(np.int64(3)).key == root.split(3).key
    assert json.loads(json.dumps(root.split(np.int64(3)).state_dict()))["path"] == [3]


def test_streams_do_not_move_each_other() -> None:
    alone = Stream(5).split("a").numpy.random(4)
    root = Stream(5)
    root.split("b").numpy.random(100)
    root.numpy.random(7)
    assert np.array_equal(root.split("a").numpy.random(4), alone)


def test_streams_look_independent() -> None:
    draws = np.stack([Stream(0).split("s", i).numpy.standard_normal(2000) for i in range(8)])
    correlation = np.corrcoef(draws) - np.eye(8)
    assert np.abs(correlation).max() < 4.5 / np.sqrt(2000)


def test_state_round_trip_of_both_generators() -> None:
    stream = Stream(3).split("x", 1)
    stream.numpy.random(5)
    torch.rand(5, generator=stream.torch)
    state = json.loads(json.dumps(stream.state_dict()))
    expected = stream.numpy.random(3), torch.rand(3, generator=stream.torch)
    again = Stream(3).split("x", 1)
    again.numpy.random(99)
    again.load_state_dict(state)
    assert np.array_equal(again.numpy.random(3), expected[0])
    assert torch.equal(torch.rand(3, generator=again.torch), expected[1])


def test_a_state_from_before_the_first_number_restores_the_beginning() -> None:
    stream = Stream(3).split("x")
    state, first = stream.state_dict(), Stream(3).split("x").numpy.random()
    stream.numpy.random(10)
    stream.load_state_dict(state)
    assert stream.numpy.random() == first


def test_another_streams_state_is_refused() -> None:
    with pytest.raises(ValueError, match="belongs to stream"):
        Stream(1).split("a").load_state_dict(Stream(1).split("b").state_dict())
    with pytest.raises(ValueError, match="of seed 2"):
        Stream(1).load_state_dict(Stream(2).state_dict())
