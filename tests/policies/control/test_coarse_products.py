"""Products that are rounded to bfloat16: what they say, their gradients, what stays, and who asks for them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from etude.core.edit import set_values
from etude.core.population import Member, Population
from etude.evaluation.export import export_policy
from etude.loops.off_policy import OffPolicyLoop
from etude.policies.control.chains import rectified
from etude.policies.control.networks import MLP, affine, affine_in_bfloat16
from log_toys import logged_task, small_logged

torch.set_num_threads(1)
STEP = 2.0**-8
"""The most that rounding to bfloat16 changes a number, as a share of it: half of what its last bit is worth."""


def given(rows: int = 64, inputs: int = 48, outputs: int = 40) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    x, weight, bias, slope = (
        torch.randn(3, *shape, generator=generator)
        for shape in ((rows, inputs), (inputs, outputs), (1, outputs), (rows, outputs))
    )
    return x, weight, bias, slope


def rounded(x: Tensor) -> Tensor:
    return x.bfloat16().double()


def test_it_is_the_product_of_what_was_rounded() -> None:
    x, weight, bias, _ = given()
    product = rounded(x) @ rounded(weight)
    said = affine_in_bfloat16(x, weight, bias)
    assert said.dtype == torch.float32
    error = (said - bias).double() - product
    assert bool((error.abs() <= STEP * product.abs() + 1e-5).all()), "rounded once, after the sum"
    assert not torch.equal(said, affine(x, weight, bias))


def test_gradients_are_the_products_of_what_was_rounded() -> None:
    x, weight, bias, slope = (t.requires_grad_() for t in given())
    slope = slope.detach()
    found = torch.autograd.grad(affine_in_bfloat16(x, weight, bias), (x, weight, bias), slope)
    coarse = rounded(slope)
    expected = (coarse @ rounded(weight.detach()).mT, rounded(x.detach()).mT @ coarse)
    for gradient, product in zip(found, expected):
        assert gradient.dtype == torch.float32
        assert bool(((gradient - product).abs() <= STEP * product.abs() + 1e-5).all())
    torch.testing.assert_close(found[2], slope.sum(1, keepdim=True))


@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 48, 40), (64, 1, 40), (64, 48, 1)])
def test_what_is_written_out_is_as_it_was(rows: int, inputs: int, outputs: int) -> None:
    x, weight, bias, _ = given(rows, inputs, outputs)
    assert torch.equal(affine_in_bfloat16(x, weight, bias), affine(x, weight, bias))


def test_hidden_layers_alone_are_coarse() -> None:
    fine, coarse = MLP(hidden=(32, 32), activation="relu"), MLP(hidden=(32, 32), activation="relu", products="bfloat16")
    population, x = Population([Member(0)]), torch.randn(1, 16, 5)
    (first, width), (second, same) = (part.build((5,), population, "policy") for part in (fine, coarse))
    assert width == same and all(
        torch.equal(p, q) for p, q in zip(first.parameters(), second.parameters(), strict=True)
    )
    said, other = first(x), second(x)
    assert not torch.equal(said, other)
    torch.testing.assert_close(said, other, rtol=0.05, atol=0.05)
    assert rectified(second.chain()) is None, "whoever computes past modules would not round"


def loops(tmp_path: Path, products: str, *seeds: int) -> OffPolicyLoop:
    parts = {f"{part}.network.products": products for part in ("policy", "critic", "value")}
    method = set_values(small_logged("iql"), parts)
    return OffPolicyLoop(method, logged_task(tmp_path), [Member(s) for s in seeds], 4, 30)


def numbers(loop: OffPolicyLoop, steps: int = 1) -> Tensor:
    """All that is learned, [members, ...], after so many blocks of 30 updates."""
    for _ in range(steps):
        loop.step()
    learned = [x for k, x in loop.policy_tensors().items() if "transforms" not in k]
    return torch.cat([x.reshape(loop.population.size, -1) for x in learned], 1).clone()


def test_a_method_learns_nearly_the_same(tmp_path: Path) -> None:
    fine, coarse = (numbers(loops(tmp_path, products, 3, 4)) for products in ("float32", "bfloat16"))
    start = numbers(loops(tmp_path, "float32", 3, 4), steps=0)
    moved, apart = (fine - start).norm(dim=1), (fine - coarse).norm(dim=1)
    assert bool((apart > 0).all()) and bool((apart < 0.3 * moved).all())
    assert torch.equal(numbers(loops(tmp_path, "bfloat16", 3, 4)), coarse), "the same again"
    alone = numbers(loops(tmp_path, "bfloat16", 4))[0]
    torch.testing.assert_close(alone, coarse[1], rtol=0, atol=2e-4)


def test_what_is_exported_rounds_too(tmp_path: Path) -> None:
    loop = loops(tmp_path, "bfloat16", 3)
    path = export_policy(loop, 0, tmp_path / "policy.pt2")
    program = torch.export.load(path).module()
    for rows in (1, 9):
        assert program(torch.randn(rows, 3)) is not None
