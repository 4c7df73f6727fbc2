"""Random numbers addressed by what they are for, never by a place in a batch.

A `Draw` is a 64-bit key, hashed from an address: the seed, the step in which an episode began, the problem, the
sample, the turn, the purpose. Its numbers are the outputs of SplitMix64 begun at the key (Steele, Lea and Flood 2014,
doi:10.1145/2660193.2660195), so number n is known without those before it:

    u[n] = (mix(key + (n + 1) 0x9e3779b97f4a7c15) >> 11) / 2^53

Only integers are computed, and they wrap around at 64 bits: every device and every processor finds the same.

>>> import torch
>>> a = Draw.at(0, "step", 3).child("turn", 0)
>>> together = uniforms(torch.tensor([7, a.key]), first=0, count=5)
>>> bool((together[2:, 1] == uniforms(torch.tensor([a.key]), first=2, count=3)[:, 0]).all())
True
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

WORD = 1 << 64
GOLDEN = 0x9E3779B97F4A7C15 - WORD
"""Distance between the states of SplitMix64: 2^64 over the golden ratio, as a signed integer like the factors below."""
ROUNDS = ((30, 0xBF58476D1CE4E5B9 - WORD), (27, 0x94D049BB133111EB - WORD))
LAST = 31


class Draw(NamedTuple):
    """Where random numbers come from: a key, signed 64 bits as int64 tensors hold it."""

    key: int

    @classmethod
    def at(cls, seed: int, *names: str | int) -> Draw:
        """The draw of a seed at an address."""
        return cls(0).child(seed, *names)

    def child(self, *names: str | int) -> Draw:
        """The draw at the names below this one: key <- mix((key xor h(name)) + golden) for each of them in turn."""
        key = self.key
        for name in names:
            key = _mix_one((key ^ _word(name)) + GOLDEN)
        return Draw(key)


def children(keys: Tensor, *names: str | int) -> Tensor:
    """`Draw.child` of every key [N] at once: keys [N]."""
    for name in names:
        keys = _mix((keys ^ _word(name)) + GOLDEN)
    return keys


def uniforms(keys: Tensor, first: int | Tensor, count: int) -> Tensor:
    """Numbers `first` to `first + count - 1` of each key, uniform in [0, 1) with 53 bits.

    Args:
        keys: [N] int64. first: the same for all, or [N].

    Returns: [count, N] float64, on the keys' device.
    """
    return ((bits(keys, first, count) >> 11) & ((1 << 53) - 1)).double() * 2.0**-53


def bits(keys: Tensor, first: int | Tensor, count: int) -> Tensor:
    """The 64 bits behind `uniforms`, as int64 [count, N]; they are keys of children, too, one for each number."""
    import torch

    place = torch.arange(1, count + 1, device=keys.device)[:, None] + first
    return _mix(place * GOLDEN + keys)


def _mix(z: Tensor) -> Tensor:
    """SplitMix64's bijection of 64 bits, in place. Shifts of int64 keep the sign, so it is masked away."""
    for shift, factor in ROUNDS:
        z ^= (z >> shift) & ((1 << (64 - shift)) - 1)
        z *= factor
    z ^= (z >> LAST) & ((1 << (64 - LAST)) - 1)
    return z


def _mix_one(z: int) -> int:
    """`_mix` of one number of any size."""
    z %= WORD
    for shift, factor in ROUNDS:
        z = (z ^ (z >> shift)) * factor % WORD
    z ^= z >> LAST
    return z - WORD if z >> 63 else z


def _word(name: str | int) -> int:
    """64 bits of a name, signed; 1 and '1' are two names, numpy's integers are numbers."""
    return _hash(name if isinstance(name, str) else int(name))


@lru_cache(maxsize=1 << 14)
def _hash(name: str | int) -> int:
    return int.from_bytes(hashlib.sha256(repr(name).encode()).digest()[:8], "little", signed=True)
