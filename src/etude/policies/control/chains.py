"""Linear layers one after another, computed past their modules: one row of each member, or many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from etude.policies.control.networks import Chain, affine


def is_one_row(chain: Chain, x: Tensor) -> bool:
    """Whether x is one row for each of as many members as a chain has, and nobody wants a gradient."""
    if torch.is_grad_enabled() or torch.compiler.is_exporting() or x.dim() != 3:
        return False
    return x.size(1) == 1 and bool(chain[0][0]["weight"].size(0) == x.size(0))


def of_one_row(chain: Chain, x: Tensor) -> Tensor:
    """What a chain says of one row of each member, [P, 1, inputs]: the bits that its modules say, in half the time."""
    for own, activation in chain:
        x = (x.mT * own["weight"]).sum(1, keepdim=True).add_(own["bias"])  # as `affine`
        if activation is not None:
            x = activation(x)
    return x


ROWS = 1024
"""Of a slice in which a chain is walked: what a layer makes of more leaves the cache before the next one reads it."""


class _Rectified(torch.autograd.Function):
    """Linear layers with rectifiers between them: the gradient of all in the operations that torch takes for each.

    More than `ROWS` rows are walked in slices, whose gradients of a weight are added one after another.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, *numbers: Tensor) -> Tensor:
        said, read = _walked(numbers, x)
        ctx.save_for_backward(x, *numbers, *(read if any(ctx.needs_input_grad) else ()))
        return said

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        count = len(ctx.needs_input_grad)
        given, read = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        needs = ctx.needs_input_grad
        if torch.is_grad_enabled():  # somebody differentiates this again: through the operations themselves
            return _again(given, needs, gradients[0])
        found, slope = _back(read, given[1::2], gradients[0], needs)
        seen = slope if needs[0] else None
        return (seen, *found) if found else (seen, *(None for _ in range(count - 1)))


def _walked(numbers: Sequence[Tensor], x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """What a chain says of [P, N, inputs], and what each layer read, slice by slice."""
    read, said = list[Tensor](), list[Tensor]()
    for part in _slices(x):
        for k in range(0, len(numbers) - 2, 2):
            read.append(part)
            part = torch.relu_(torch.baddbmm(numbers[k + 1], part, numbers[k]))
        read.append(part)
        said.append(affine(part, *numbers[-2:]))
    return said[0] if len(said) == 1 else torch.cat(said, 1), read


def _back(
    read: Sequence[Tensor], weights: Sequence[Tensor], gradient: Tensor, needs: Sequence[bool]
) -> tuple[list[Tensor], Tensor]:
    """As `_slopes`, of all slices."""
    found, slopes, layers = list[Tensor](), list[Tensor](), len(weights)
    for i, slope in enumerate(_slices(gradient)):
        own, slope = _slopes(read[i * layers : (i + 1) * layers], weights, slope, needs)
        found = [x.add_(y) for x, y in zip(found, own)] if found else own
        slopes.append(slope)
    return found, slopes[0] if len(slopes) == 1 else torch.cat(slopes, 1)


def _slices(x: Tensor) -> list[Tensor]:
    """[P, N, ...] in parts of at most `ROWS` rows; each lies in memory as that of a lone member does."""
    count = -(-x.size(1) // ROWS)
    return [x] if count == 1 else [part.clone(memory_format=torch.contiguous_format) for part in x.chunk(count, 1)]


def _slopes(
    read: Sequence[Tensor], weights: Sequence[Tensor], slope: Tensor, needs: Sequence[bool]
) -> tuple[list[Tensor], Tensor]:
    """Gradients of weights and biases, where they are needed, and of what the first layer read."""
    found = list[Tensor]()
    for k in reversed(range(len(weights))):
        x, weight = read[k], weights[k]
        narrow = weight.size(2) == 1  # as `affine`
        if any(needs[1:]):
            of_weight = (slope * x).sum(1, keepdim=True).mT if narrow else torch.bmm(x.mT, slope)
            found += [slope.sum(1, keepdim=True), of_weight]
        if k or needs[0]:
            slope = slope * weight.mT if narrow else torch.bmm(slope, weight.mT)
        if k:
            slope = torch.ops.aten.threshold_backward.grad_input(slope, x, 0, grad_input=slope)
    return found[::-1], slope


def _again(given: Sequence[Tensor], needs: Sequence[bool], slope: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of what needs some, with a gradient of their own."""
    x = given[0]
    for k in range(1, len(given) - 2, 2):
        x = torch.relu(affine(x, given[k], given[k + 1]))
    wanted = [one for one, need in zip(given, needs) if need]
    found = iter(torch.autograd.grad(affine(x, *given[-2:]), wanted, slope, create_graph=True))
    return tuple(next(found) if need else None for need in needs)


def of_rows(chain: Chain, x: Tensor) -> Tensor:
    """What a chain with rectifiers says of two rows or more, [P, N, inputs], to the bits of its modules.

    Of more than `ROWS` rows gradients are added up in another order than those of modules.
    """
    numbers = [own[name] for own, _ in chain for name in ("weight", "bias")]
    if not torch.is_grad_enabled():
        return _walked(numbers, x)[0]
    return cast(Tensor, _Rectified.apply(x, *numbers))  # type: ignore[no-untyped-call]


@torch.no_grad()
def traced_rows(chain: Chain, x: Tensor) -> tuple[Tensor, Callable[[Tensor], list[Tensor]]]:
    """As `of_rows`, without a graph, and what makes gradients of weights and biases, in order, of one in what it says.

    Both to the bits of autograd, past its engine, whose calls take longer than products of this size.
    """
    numbers = [own[name] for own, _ in chain for name in ("weight", "bias")]
    said, read = _walked(numbers, x)

    @torch.no_grad()
    def back(slope: Tensor) -> list[Tensor]:
        return _back(read, numbers[::2], slope, (False, True))[0]

    return said, back


def narrow(chain: Chain) -> list[bool]:
    """Of which layers an edge is 1, so that `affine` computes them in another way."""
    return [1 in own["weight"].shape[1:] for own, _ in chain]


def rectified(chain: Chain | None) -> Chain | None:
    """The chain, if a rectifier follows each of its layers but the last, which alone may say one number."""
    if chain is None or chain[-1][1] is not None or any(f is not torch.relu_ for _, f in chain[:-1]):
        return None
    return None if any(narrow(chain)[:-1]) or chain[-1][0]["weight"].size(1) == 1 else chain
