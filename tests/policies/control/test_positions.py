"""What control computes element by element gives a number the same last bits wherever it stands in a tensor.

torch computes the end of a tensor, what is left after whole vectors of 8 or 16 numbers, by another kernel; for some
functions the last bits differ there. A lone member's tensors end elsewhere than those of several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from etude.core import kernels
from etude.policies.control.activations import elu, sigmoid, silu, softplus, tanh_

torch.set_num_threads(1)
Function = Callable[[Tensor], Tensor]
OURS: dict[str, Function] = {
    "sigmoid": sigmoid, "softplus": softplus, "silu": silu, "elu": elu, "our tanh": lambda x: tanh_(x + 0),
}  # fmt: skip
TORCHS: dict[str, Function] = {
    "tanh": torch.tanh, "exp": torch.exp, "expm1": torch.expm1, "relu": torch.relu, "square": lambda x: x**2,
    "log": lambda x: x.abs().log(), "log1p": lambda x: x.abs().log1p(), "sqrt": lambda x: x.abs().sqrt(),
    "reciprocal": torch.reciprocal, "abs": torch.abs, "clamp": lambda x: x.clamp(-1, 1),
    "log_softmax": lambda x: x.view(-1, 1, 1).expand(-1, 1, 2).mul(torch.tensor([1.0, -2.0])).log_softmax(-1)[:, 0, 0],
}  # fmt: skip
"""The rest of what is used, as it is."""
EXACT: dict[str, Function] = {
    "sigmoid": torch.sigmoid, "softplus": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
    "silu": torch.nn.functional.silu, "elu": torch.nn.functional.elu, "our tanh": torch.tanh,
}  # fmt: skip
COUNT = 531


@pytest.fixture(params=["torch", "numpy"], autouse=True)
def route(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Every test by both ways to a tanh, whichever this processor gets."""
    monkeypatch.setattr(kernels, "numpy_tanh", lambda: request.param == "numpy")
    yield request.param


def numbers() -> Tensor:
    """[531]: many sizes of both signs, and 0."""
    found = torch.randn(COUNT, generator=torch.Generator().manual_seed(0))
    found[::3] *= 20
    found[::7] *= 0.01
    found[5] = 0
    return found


def with_gradient(function: Function, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    y = function(x)
    return y.detach(), torch.autograd.grad(y.sum(), x)[0]


@pytest.mark.first
@pytest.mark.parametrize("name", [*OURS, *TORCHS])
def test_the_position_in_a_tensor_does_not_matter(name: str) -> None:
    """At every offset from 0 to 16, with ends of every length up to 33, values and gradients are the whole's."""
    function, x = {**TORCHS, **OURS}[name], numbers()
    whole = with_gradient(function, x)
    for start in range(17):
        for stop in range(COUNT - 33, COUNT + 1):
            for found, exact in zip(with_gradient(function, x[start:stop]), whole):
                assert torch.equal(found.view(torch.int32), exact[start:stop].view(torch.int32)), (start, stop)


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("kind", (torch.float32, torch.float64))
def test_our_forms_are_the_functions(name: str, kind: torch.dtype) -> None:
    x = torch.cat([numbers(), torch.tensor([-100.0, 100.0, -1e-8, 1e-8])]).to(kind)
    for found, exact in zip(with_gradient(OURS[name], x), with_gradient(EXACT[name], x.double())):
        tolerance = 5e-7 if kind == torch.float32 else 1e-14
        torch.testing.assert_close(found.double(), exact, atol=tolerance, rtol=4 * tolerance)


def test_tanh_is_within_two_units_in_the_last_place_and_so_is_its_slope() -> None:
    """Of numbers from 1e-7 to 12; and where it is 0, 1, infinite or not a number. torch's own are within 1."""
    size = torch.cat([torch.logspace(-7, 0, 50_001), torch.linspace(0, 12, 50_001)])
    x = torch.cat([size, -size])
    value, slope = with_gradient(OURS["our tanh"], x)
    exact = x.double().tanh()
    unit = torch.nextafter(exact.float().abs(), torch.tensor(torch.inf)) - exact.float().abs()
    assert float(((value - exact).abs() / unit)[exact != 0].max()) < 2
    assert float((slope - (1 - exact**2)).abs().max()) < 2**-22  # slopes are at most 1
    edges = torch.tensor([torch.inf, -torch.inf, torch.nan, -0.0])
    found = tanh_(edges.clone())
    assert found[:2].tolist() == [1, -1] and bool(found[2].isnan()) and bool(found[3].signbit())


def test_tanh_writes_over_its_argument_and_can_be_differentiated_twice() -> None:
    """d^2 tanh^2 / dx^2 = 2 (1 - y^2) (1 - 3 y^2)."""
    x = numbers().requires_grad_()
    product = x * 1
    y = tanh_(product)
    assert y.data_ptr() == product.data_ptr()
    (slope,) = torch.autograd.grad((y**2).sum(), x, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), x)
    exact = x.detach().double().tanh() ** 2
    torch.testing.assert_close(bend.double(), 2 * (1 - exact) * (1 - 3 * exact), atol=1e-6, rtol=1e-5)
    with torch.no_grad():
        assert torch.equal(tanh_(x * 1), y)
