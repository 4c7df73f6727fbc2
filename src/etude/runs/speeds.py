"""How fast this machine computes in float32, by each library that is there: tried in a tenth of a second.

torch's products are those of the BLAS it was built with, which may take kernels of an older processor: MKL takes those
of AVX2 on processors that are not Intel's. What oneDNN (in torch too) and NumPy's BLAS reach beside it says whether
another torch would be faster.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from etude.core import kernels

LIBRARIES = {"MKL": "Math Kernel Library Version", "oneDNN": "MKL-DNN v", "OpenBLAS": "OpenBLAS"}
"""How `torch.__config__` names what torch was built with."""
MUCH = 1.4
"""From this ratio on another library is worth a sentence."""
ROWS, INPUTS, OUTPUTS, NUMBERS = 256, 384, 1024, 1 << 14


@dataclass(frozen=True)
class Speeds:
    """What was reached on one core.

    Args:
        products: by library, the one that torch takes first, in 10^9 operations of float32 a second of processor time.
        tanh: by 'torch' and 'NumPy', in nanoseconds a number.
        taken: whose tanh control networks take here.
    """

    products: dict[str, float]
    tanh: dict[str, float]
    taken: str

    def __str__(self) -> str:
        by = ", ".join(f"{rate:.0f} ({name})" for name, rate in self.products.items())
        tanh = ", ".join(f"{spent:.1f} ({name})" for name, spent in self.tanh.items())
        return f"products {by} GFLOP/s a core; tanh {tanh} ns a number, control takes {self.taken}'s"

    def advice(self) -> str | None:
        """A sentence if another library multiplies much faster than the one that torch takes."""
        (own, rate), *others = self.products.items()
        name, best = max(others, key=lambda pair: pair[1], default=(own, rate))
        if best < MUCH * rate:
            return None
        return (
            f"Products in float32 reach {rate:.0f} GFLOP/s a core by {own}, which torch takes, and {best:.0f} by "
            f"{name}: a torch with another BLAS may be faster (conda-forge's builds take OpenBLAS or BLIS), or "
            "--autocast where bfloat16 serves."
        )


def measure() -> Speeds:
    """Try each library, with the number of threads that is set."""
    x, w = torch.randn(ROWS, INPUTS), torch.randn(OUTPUTS, INPUTS)
    left, right, out = x.numpy(), w.numpy().T, np.empty((ROWS, OUTPUTS), np.float32)
    names = [*(name for name, _ in built_with() if name != "oneDNN"), "torch"]
    ways: dict[str, Callable[[], object]] = {names[0]: lambda: x @ w.T}
    if torch.backends.mkldnn.is_available():
        ways["oneDNN"] = lambda: torch.ops.mkldnn._linear_pointwise(x, w, None, "none", [], "")
    ways["NumPy's BLAS"] = lambda: np.matmul(left, right, out=out)
    operations = 2 * ROWS * INPUTS * OUTPUTS
    numbers = torch.linspace(-3, 3, NUMBERS)
    ours, into = numbers.numpy(), np.empty(NUMBERS, np.float32)
    tanh = {
        "torch": _least(lambda: torch.tanh(numbers)) / NUMBERS * 1e9,
        "NumPy": _least(lambda: np.tanh(ours, out=into)) / NUMBERS * 1e9,
    }
    products = {name: operations / _least(way) / 1e9 for name, way in ways.items()}
    return Speeds(products, tanh, "NumPy" if kernels.numpy_tanh() else "torch")


def built_with() -> list[tuple[str, str]]:
    """Libraries and versions that torch was built with."""
    shown = torch.__config__.show()
    found = ((name, re.search(rf"{pattern} ?([\d.]+)", shown)) for name, pattern in LIBRARIES.items())
    return [(name, match[1]) for name, match in found if match]


def _least(way: Callable[[], object], rounds: int = 8) -> float:
    """The shortest processor time of a call, in seconds."""
    best = math.inf
    way()
    for _ in range(rounds):
        begun = time.process_time()
        way()
        best = min(best, time.process_time() - begun)
    return max(best, 1e-9)
