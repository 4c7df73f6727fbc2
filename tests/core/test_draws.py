"""Draws: SplitMix64 by address, equal however a batch is cut, and random in every direction that is used."""

from __future__ import annotations

import functools
import hashlib
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from etude.core.draws import Draw, bits, children, uniforms
from etude.core.streams import Stream

WORD = 2**64
LIMIT = 4.5  # standard errors; about one such check in 150,000 fails by chance
keys_64 = st.integers(-(2**63), 2**63 - 1)
names = st.text(max_size=4) | st.integers(-3, 10**6)
paths = st.lists(names, max_size=4).map(tuple)


def splitmix(state: int) -> int:
    """One output of SplitMix64 as published, from the state after its increment, in Python's integers."""
    z = state % WORD
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % WORD
    return z ^ (z >> 31)


def signed(word: int) -> int:
    return word - WORD if word >= WORD // 2 else word


def numbers(key: int, first: int, count: int) -> list[float]:
    """`uniforms` of one key, by the definition."""
    words = [splitmix(key + (n + 1) * 0x9E3779B97F4A7C15) for n in range(first, first + count)]
    return [(word >> 11) / 2**53 for word in words]


# The numbers


def test_published_outputs_of_splitmix64() -> None:
    """Of the seed 1234567 (rosettacode.org, Pseudo-random numbers/Splitmix64) and of the seed 0 (Java's, Julia's)."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431,
                 16408922859458223821]  # fmt: skip
    zero = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    found = bits(torch.tensor([1234567, 0]), 0, 5).T.tolist()
    assert [x % WORD for x in found[0]] == published and [x % WORD for x in found[1][:3]] == zero


@given(keys_64, st.integers(0, 2**40), st.integers(1, 8))
def test_numbers_are_those_of_the_definition(key: int, first: int, count: int) -> None:
    found = uniforms(torch.tensor([key]), first, count)
    assert found.dtype == torch.float64 and found[:, 0].tolist() == numbers(key, first, count)


def test_the_smallest_and_the_largest_number() -> None:
    """The bijection maps 0 to 0; the key whose state before it gives all ones is found by inverting it."""
    z = WORD - 1
    z ^= (z >> 31) ^ (z >> 62)
    z = z * pow(0x94D049BB133111EB, -1, WORD) % WORD
    z ^= (z >> 27) ^ (z >> 54)
    z = z * pow(0xBF58476D1CE4E5B9, -1, WORD) % WORD
    z ^= (z >> 30) ^ (z >> 60)
    keys = [signed((state - 0x9E3779B97F4A7C15) % WORD) for state in (0, z)]
    assert uniforms(torch.tensor(keys), 0, 1).tolist() == [[0.0, 1 - 2.0**-53]]


@pytest.mark.slow
@given(st.lists(keys_64, min_size=1, max_size=12), st.data())
def test_rows_and_numbers_may_be_cut_anywhere(keys: list[int], data: st.DataObject) -> None:
    every, whole = torch.tensor(keys), uniforms(torch.tensor(keys), 0, 9)
    rows = data.draw(st.lists(st.integers(0, len(keys) - 1), min_size=1, max_size=15))
    first, count = data.draw(st.integers(0, 8)), data.draw(st.integers(0, 1))
    assert torch.equal(uniforms(every[rows], first, count), whole[first : first + count, rows])
    firsts = torch.tensor(data.draw(st.lists(st.integers(0, 7), min_size=len(keys), max_size=len(keys))))
    apart = uniforms(every, firsts, 2)
    assert torch.equal(apart, torch.stack([whole[f : f + 2, i] for i, f in enumerate(firsts.tolist())], 1))


@pytest.mark.slow
def test_layout_and_threads_change_nothing() -> None:
    keys, before = torch.arange(-3000, 3000) * 7919, torch.get_num_threads()
    whole = uniforms(keys, 3, 40)
    assert torch.equal(uniforms(keys[::3], 3, 40), whole[:, ::3])
    torch.set_num_threads(2)
    again = uniforms(keys, 3, 40)
    torch.set_num_threads(before)
    assert torch.equal(again, whole)
    by_numpy = np.array([numbers(k, 3, 1)[0] for k in keys[:50].tolist()])
    assert np.array_equal(whole[0, :50].numpy(), by_numpy)


def test_keys_are_left_as_they_were() -> None:
    keys = torch.tensor([5, 6])
    bits(keys, 0, 2), children(keys, "x"), uniforms(keys, keys, 1)
    assert keys.tolist() == [5, 6]


# Addresses


def test_a_childs_key_by_hand() -> None:
    """mix((key xor the first 8 bytes of SHA-256 of the name) + golden), name by name."""
    key = 0
    for name in (3, "step", 12, "problem", "sums/train/7"):
        word = int.from_bytes(hashlib.sha256(repr(name).encode()).digest()[:8], "little")
        key = splitmix((key ^ word) + 0x9E3779B97F4A7C15)
    assert Draw.at(3, "step", 12, "problem", "sums/train/7").key == signed(key)
    assert Stream(3).split("step", 12).draw("problem", "sums/train/7").key == signed(key)


@pytest.mark.slow
@given(keys_64, paths, paths)
def test_addresses_are_paths(key: int, a: tuple, b: tuple) -> None:
    draw = Draw(key)
    assert draw.child(*a).child(*b) == draw.child(*a, *b)
    assert (draw.child(*a) == draw.child(*b)) == (a == b)
    assert children(torch.tensor([key, 1]), *a).tolist() == [draw.child(*a).key, Draw(1).child(*a).key]
    assert -(2**63) <= draw.child(*a).key < 2**63


def test_names_are_not_glued_and_numbers_are_not_text() -> None:
    root = Draw.at(0)
    assert root.child("ab", "c") != root.child("a", "bc") and root.child("a", "b") != root.child("b", "a")
    assert root.child(3) != root.child("3") and root.child(np.int64(3)) == root.child(3)
    assert Draw.at(1) != Draw.at(0) and Draw.at(-1) != Draw.at(1)


@pytest.mark.slow
def test_no_two_addresses_of_a_large_grid_share_a_key() -> None:
    """2 seeds, 8 steps, 2 rounds, 16 problems, 2 occurrences, 8 samples, 3 forks, 4 turns, 3 purposes."""
    at = [range(2), range(8), range(2), range(16), range(2), range(8), ("", "fork", "retry"), range(4)]
    keys = torch.tensor([Draw.at(*address).key for address in itertools.product(*at[:4])])
    for choices in (*at[4:], ("tokens", "environment", "verdict")):
        keys = torch.cat([children(keys, choice) for choice in choices])
    assert len(keys) == 2 * 8 * 2 * 16 * 2 * 8 * 3 * 4 * 3 == len(keys.unique())
    numbered = torch.cat([keys, bits(keys, 0, 8).flatten()])
    assert len(numbered) == len(numbered.unique()), "nor with the outputs"


# How random they are


N = 1 << 18
SIBLINGS = children(torch.arange(N), "sample")


@functools.cache
def series() -> dict[str, torch.Tensor]:
    """N numbers in each direction that is used: one key's, adjacent keys', and those of children."""
    return {
        "counter": uniforms(torch.tensor([Draw.at(0, "a").key]), 0, N)[:, 0],
        "keys": uniforms(torch.arange(N), 0, 1)[0],
        "children": uniforms(SIBLINGS, 0, 1)[0],
        "numbered": uniforms(bits(torch.tensor([17]), 0, N)[:, 0], 0, 1)[0],
        "addresses": torch.cat([uniforms(children(torch.tensor([Draw.at(s).key]), "turn", t), 0, 512)[:, 0]
                                for s in range(16) for t in range(32)]),
    }  # fmt: skip


SERIES = ("counter", "keys", "children", "numbered", "addresses")


@pytest.mark.parametrize("name", SERIES)
def test_moments_and_serial_correlations(name: str) -> None:
    u = series()[name]
    assert len(u) == N
    z = (u - 0.5) * 12**0.5
    assert abs(float(z.mean())) < LIMIT / N**0.5
    assert abs(float((z**2).mean() - 1)) < LIMIT * (0.8 / N) ** 0.5  # Var z^2 = 9/5 - 1
    for lag in (1, 2, 3, 8, 64, 512):
        assert abs(float((z[lag:] * z[:-lag]).mean())) < LIMIT / (N - lag) ** 0.5


@pytest.mark.parametrize("name", SERIES)
def test_pairs_of_neighbours_fill_the_square_evenly(name: str) -> None:
    cells = (series()[name] * 16).long()
    pairs = torch.bincount(cells[:-1:2] * 16 + cells[1::2], minlength=256)
    assert chisquare(pairs.numpy()).pvalue > 1e-4


def test_keys_do_not_move_together() -> None:
    """Whole series of adjacent keys, of adjacent samples and of other steps, against each other."""
    root = Draw.at(0, "step", 1)
    steps = [Draw.at(0, "step", s).child(0).key for s in range(2, 10)]
    keys = [*range(8), *(root.child(i).key for i in range(8)), *steps]
    u = uniforms(torch.tensor(keys), 0, 20_000).T
    correlation = torch.corrcoef(u) - torch.eye(len(keys))
    assert float(correlation.abs().max()) < 5 / 20_000**0.5  # the largest of 276


@pytest.mark.slow
@pytest.mark.parametrize("keys", [torch.arange(N), SIBLINGS], ids=["adjacent", "children"])
def test_every_bit_is_fair(keys: torch.Tensor) -> None:
    for words in (bits(keys, 0, 1)[0], bits(keys[:1], 0, N)[:, 0]):
        ones = torch.stack([(words >> b) & 1 for b in range(64)]).double().mean(1)
        assert float((ones - 0.5).abs().max()) < LIMIT * 0.5 / N**0.5


@pytest.mark.slow
def test_one_bit_of_a_key_changes_half_of_all_bits() -> None:
    keys = bits(torch.tensor([3]), 0, 4096)[:, 0]
    for b in range(64):
        changed = bits(keys, 0, 1)[0] ^ bits(keys ^ (1 << b if b < 63 else -(2**63)), 0, 1)[0]
        share = torch.stack([(changed >> k) & 1 for k in range(64)]).double().mean()
        assert abs(float(share) - 0.5) < LIMIT * 0.5 / (64 * 4096) ** 0.5 * 2  # bits of a word are not independent
