"""Batched networks: one set of weights per member, [P, N, inputs] -> [P, N, outputs]."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from etude.core.errors import ConfigError
from etude.core.fields import Count, WholeNumber
from etude.core.population import Population
from etude.core.step_slots import Initializer, Network
from etude.policies.control.activations import ACTIVATIONS, Activation

GAIN = math.sqrt(2)
"""Scale of the weights before an activation."""


def orthogonal(population: Population, name: str, rows: int, columns: int, gain: float) -> Tensor:
    """[P, rows, columns] orthogonal weights (arXiv:1312.6120) from each member's stream `name`, scaled by `gain`."""

    def one(generator: torch.Generator) -> Tensor:
        return nn.init.orthogonal_(torch.empty(rows, columns), generator=generator)

    return population.draw("init", name, of=one) * gain


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x W + b for every member: [P, N, inputs], [P, inputs, outputs], [P, 1, outputs] -> [P, N, outputs].

    A product with an edge of 1 is written out: of a lone member, torch would compute it by another kernel, a vector's,
    than it does for several (backward too, where the three edges change places). All else is the same for every P.
    """
    if weight.size(2) == 1:
        return (x * weight.mT).sum(-1, keepdim=True) + bias
    if weight.size(1) == 1:
        return torch.addcmul(bias, x, weight)
    if not torch.compiler.is_exporting() and x.size(1) == 1:  # what is exported has to take any N
        return (x.mT * weight).sum(1, keepdim=True).add_(bias)
    return torch.baddbmm(bias, x, weight)


def affine_in_bfloat16(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """As `affine`, with x, W and their product rounded to bfloat16, 8 bits; gradients' products are rounded too.

    What `affine` writes out, with an edge of 1, is as there.
    """
    if 1 in weight.shape[1:] or (not torch.compiler.is_exporting() and x.size(1) == 1):
        return affine(x, weight, bias)
    return torch.bmm(x.bfloat16(), weight.bfloat16()).to(x.dtype) + bias


class Plain(nn.Module):
    """A module whose call is its `forward`, without torch's hooks: they cost as much as a small layer."""

    def __call__(self, *args: object) -> Any:
        return self.forward(*args)


def direction(x: Tensor) -> Tensor:
    """x / |x|, and 0 of 0, which has none: with a gradient of 0 there, where any other would be without bound."""
    size: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / size.masked_fill(size == 0, torch.inf)


def networks_in(module: nn.Module) -> int:
    """How many networks a batched module holds: the rows of its first parameter, found without a walk through all."""
    while not module._parameters:
        module = next(m for m in module._modules.values() if m is not None)
    return next(p for p in module._parameters.values() if p is not None).size(0)


Chain = tuple[tuple[dict[str, Any], Callable[[Tensor], Tensor] | None], ...]
"""Linear layers one after another: the parameters of each, and what follows it."""


def chained(*modules: nn.Module) -> Chain | None:
    """What modules are one after another, if that is linear layers and activations alone (each says so in `chain`)."""
    each: list[Chain | None] = [cast(Any, m).chain() if hasattr(m, "chain") else None for m in modules]
    known = [links for links in each if links is not None]
    return sum(known, ()) if len(known) == len(each) else None


class Linear(Plain):
    """x W + b for every member: weight [P, inputs, outputs], bias [P, 1, outputs].

    Weights are orthogonal, scaled by `gain`, a number or one per member (sqrt 2 and 0.01 for the last layer of a policy
    are the PPO implementations' choice, arXiv:2006.05990); biases start at 0. `start` says otherwise. `coarse` rounds
    what is multiplied to bfloat16.
    """

    def __init__(
        self, population: Population, name: str, inputs: int, outputs: int, gain: float = GAIN,
        start: Initializer | None = None, coarse: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.coarse = coarse
        if start is None:
            weight = orthogonal(population, name, outputs, inputs, gain).transpose(1, 2)
            bias = torch.zeros(population.size, 1, outputs)
        else:
            weight, bias = (of(population, name, inputs, outputs) for of in (start.weights, start.biases))
        self.weight, self.bias = nn.Parameter(weight.contiguous()), nn.Parameter(bias)

    def chain(self) -> Chain | None:
        return None if self.coarse else ((self._parameters, None),)

    def forward(self, x: Tensor) -> Tensor:
        own = self._parameters  # read directly: torch's way to an attribute takes as long as a small product
        if self.coarse:
            return affine_in_bfloat16(x, own["weight"], own["bias"])  # type: ignore[arg-type]
        return affine(x, own["weight"], own["bias"])  # type: ignore[arg-type]


class LayerNorm(Plain):
    """Layer normalisation with a scale and a shift per member (arXiv:1607.06450)."""

    def __init__(self, population: Population, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(population.size, 1, width))
        self.shift = nn.Parameter(torch.zeros(population.size, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.shift, nn.functional.layer_norm(x, x.shape[-1:]), self.scale)


class Standardize(Plain):
    """Layer normalisation without parameters: mean 0 and variance 1 over the units of a layer."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.layer_norm(x, x.shape[-1:])


class Layers(Plain):
    """Linear layers with an activation after each.

    Args:
        unit: whether what comes of them is divided by its L2 norm.
    """

    def __init__(
        self, layers: Sequence[nn.Module], norms: Sequence[nn.Module], activation: str, unit: bool = False
    ) -> None:
        super().__init__()
        self.layers, self.norms, self.unit = nn.ModuleList(layers), nn.ModuleList(norms), unit
        self.activation = ACTIVATIONS[activation]

    def chain(self) -> Chain | None:
        links = chained(*self.layers)
        if links is None or len(self.norms) or self.unit:
            return None
        return tuple((own, self.activation) for own, _ in links)

    def forward(self, x: Tensor) -> Tensor:
        activation = self.activation
        layers, norms = (self._modules[k]._modules.values() for k in ("layers", "norms"))  # type: ignore[union-attr]
        for layer, norm in itertools.zip_longest(layers, norms):
            x = layer(x)
            x = activation(x if norm is None else norm(x))
        return direction(x) if self.unit else x


class LateAction(Layers):
    """Layers of which a later one reads the action, the last numbers of [P, N, D], beside what those before it say.

    Args:
        at: the layer that reads it, counted from 0. size: numbers of an action.
    """

    def __init__(
        self, layers: Sequence[nn.Module], norms: Sequence[nn.Module], activation: str, unit: bool, at: int, size: int
    ) -> None:
        super().__init__(layers, norms, activation, unit)
        self.at, self.size = at, size

    def chain(self) -> Chain | None:
        return None

    def forward(self, x: Tensor) -> Tensor:
        seen, action = x.split([x.size(-1) - self.size, self.size], -1)
        x = seen.contiguous()  # as it lies in memory where nothing is beside it
        for k, (layer, norm) in enumerate(itertools.zip_longest(self.layers, self.norms)):
            x = layer(torch.cat([x, action], -1) if k == self.at else x)
            x = self.activation(x if norm is None else norm(x))
        return direction(x) if self.unit else x


class MLP(Network):
    """A multilayer perceptron over flat observations. `hidden` may be empty: then what follows is linear.

    Args:
        layer_norm: of what each layer says, before its activation (arXiv:1607.06450).
        affine: whether the layer norms have a scale and a shift of their own.
        initializer: where weights and biases start (`policies/control/initializers.py`); None: orthogonal, and 0.
        penultimate_norm: whether the last hidden vector is divided by its L2 norm (arXiv:2411.15370, section 3.2), so
            that what reads it depends on its direction alone.
        action_layer: of a critic of actions that are numbers, the hidden layer, counted from 0, that reads the action
            beside what the layers before it say; 0: the first, with the observation (DDPG's paper has 1).
        products: 'bfloat16' rounds what hidden layers multiply to 8 bits, in gradients too; weights and sums stay in
            float32. Wide layers are several times as fast where a processor has instructions for it (AMX, AVX512-BF16),
            and slower elsewhere.

    Raises: ConfigError for a layer that is not there, and for one that is to read actions where nobody gives any.

    Shapes: [P, N, D] -> [P, N, width], the width of the last layer.

    >>> from etude.core.population import Member
    >>> MLP(hidden=(64, 32)).build((4,), Population([Member(0)]), "policy")[1]
    32
    """

    hidden: tuple[Count, ...] = (64, 64)
    activation: Activation = "tanh"
    layer_norm: bool = False
    affine: bool = True
    initializer: Initializer | None = None
    penultimate_norm: bool = False
    action_layer: WholeNumber = 0
    products: Literal["float32", "bfloat16"] = "float32"

    def check(self) -> None:
        if self.action_layer and self.action_layer >= len(self.hidden):
            raise ConfigError(
                f"MLP.action_layer={self.action_layer} is to read the action, and the {len(self.hidden)} hidden layers "
                "are counted from 0: lower it or set more hidden."
            )
        if not self.affine and not self.layer_norm:
            raise ConfigError("MLP.affine is about its layer norms, of which there are none: set layer_norm=true.")
        if self.penultimate_norm and not self.hidden:
            raise ConfigError("MLP.penultimate_norm is about the last hidden vector, and there is none: set hidden.")

    def build(self, shape: tuple[int, ...], population: Population, name: str) -> tuple[nn.Module, int]:
        if len(shape) != 1:
            raise ConfigError(
                f"{name}: MLP reads vectors, and observations are images {list(shape)}: use a cnn or multi-input."
            )
        if any(leaf.kind == "image" for leaf in getattr(shape, "leaves", ())):
            raise ConfigError(
                f"{name}: MLP reads vectors, and some leaves of the observations are images: use multi-input."
            )
        if self.action_layer:
            raise ConfigError(
                f"{name}: MLP.action_layer={self.action_layer} is to read an action, and this network is given none: "
                "only critics of actions that are numbers are. Set action_layer=0."
            )
        layers, norms = self._layers(shape[0], 0, population, name)
        return Layers(layers, norms, self.activation, self.penultimate_norm), self._width(shape[0])

    def build_with_actions(
        self, inputs: int, size: int, population: Population, name: str
    ) -> tuple[nn.Module, int]:  # fmt: skip
        if not self.action_layer:
            return self.build((inputs + size,), population, name)
        layers, norms = self._layers(inputs, size, population, name)
        at = self.action_layer
        return LateAction(layers, norms, self.activation, self.penultimate_norm, at, size), self._width(inputs)

    def _width(self, inputs: int) -> int:
        return self.hidden[-1] if self.hidden else inputs

    def _layers(
        self, inputs: int, size: int, population: Population, name: str
    ) -> tuple[list[nn.Module], list[nn.Module]]:
        """Linear layers and their norms; the one at `action_layer` reads `size` numbers more."""
        pairs = itertools.pairwise([inputs, *self.hidden])
        start, coarse = self.initializer, self.products == "bfloat16"
        layers: list[nn.Module] = [
            Linear(population, f"{name}.{i}", n + size * (i == self.action_layer), width, start=start, coarse=coarse)
            for i, (n, width) in enumerate(pairs)
        ]
        norms = [LayerNorm(population, n) if self.affine else Standardize() for n in self.hidden] * self.layer_norm
        return layers, list[nn.Module](norms)


class Conv(nn.Module):
    """A convolution for every member, images [P, N, C, H, W]: weight [P, O, C, k, k], bias [P, O].

    Around the image are `padding` rows and columns of zeros.

    The members are computed one after another: a grouped convolution over them takes longer on a CPU, and chooses
    its kernel by their number, so that its last bits depend on who else is there.
    """

    def __init__(
        self, population: Population, name: str, inputs: int, outputs: int, kernel: int, stride: int, padding: int = 0
    ) -> None:
        super().__init__()
        weight = orthogonal(population, name, outputs, inputs * kernel**2, GAIN)
        self.weight = nn.Parameter(weight.unflatten(2, (inputs, kernel, kernel)))
        self.bias = nn.Parameter(torch.zeros(population.size, outputs))
        self.stride, self.padding = stride, padding

    def forward(self, x: Tensor) -> Tensor:
        each = zip(x, self.weight, self.bias)
        convolved = [nn.functional.conv2d(one, w, bias, self.stride, self.padding) for one, w, bias in each]
        return torch.stack(convolved)


class Convolutions(nn.Module):
    """Convolutions with an activation after each, flattened, then linear layers."""

    def __init__(self, layers: Sequence[nn.Module], activation: str, after: nn.Module) -> None:
        super().__init__()
        self.layers, self.after = nn.ModuleList(layers), after
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.activation(layer(x))
        features: Tensor = self.after(x.flatten(2))
        return features


class CNN(Network):
    """A convolutional network over images [C, H, W], then a perceptron; by default the one of doi:10.1038/nature14236.

    Args:
        channels, kernels, strides: of each convolution, the first reading the image; as many of each.
        padding: rows and columns of zeros that every convolution puts around what it reads.
        hidden: widths of the layers that follow; `layer_norm` is theirs.

    Raises: ConfigError if the three lists differ in length, for observations that are not images, and for images that
        are smaller than what a kernel covers.

    Shapes: [P, N, C, H, W] -> [P, N, width]. Of 36 pixels the three convolutions leave 8, 3 and 1:

    >>> from etude.core.population import Member
    >>> network, width = CNN(hidden=(16,)).build((3, 36, 36), Population([Member(0)]), "policy")
    >>> network(torch.zeros(1, 5, 3, 36, 36)).shape
    torch.Size([1, 5, 16])
    """

    channels: tuple[Count, ...] = (32, 64, 64)
    kernels: tuple[Count, ...] = (8, 4, 3)
    strides: tuple[Count, ...] = (4, 2, 1)
    padding: WholeNumber = 0
    hidden: tuple[Count, ...] = (512,)
    activation: Activation = "relu"
    layer_norm: bool = False

    def check(self) -> None:
        if not len(self.channels) == len(self.kernels) == len(self.strides):
            raise ConfigError(
                "CNN needs a kernel and a stride for each of its channels: got "
                f"channels={self.channels}, kernels={self.kernels}, strides={self.strides}."
            )

    def build(self, shape: tuple[int, ...], population: Population, name: str) -> tuple[nn.Module, int]:
        if len(shape) != 3:
            raise ConfigError(f"{name}: CNN reads images [C, H, W], and observations are {list(shape)}: use an mlp.")
        layers, (inputs, *size) = [], shape
        for i, (outputs, kernel, stride) in enumerate(zip(self.channels, self.kernels, self.strides)):
            size = [n + 2 * self.padding for n in size]
            if min(size) < kernel:
                raise ConfigError(
                    f"{name}: what reaches convolution {i} of the CNN is {size[0]} x {size[1]}, smaller than "
                    f"its kernel of {kernel}; observations are {list(shape)}. Set kernels and strides, as in "
                    "kernels=4,3 strides=2,1."
                )
            layers.append(Conv(population, f"{name}.conv{i}", inputs, outputs, kernel, stride, self.padding))
            inputs, size = outputs, [(n - kernel) // stride + 1 for n in size]
        after = MLP(hidden=self.hidden, activation=self.activation, layer_norm=self.layer_norm)
        flat, width = after.build((inputs * size[0] * size[1],), population, name)
        return Convolutions(layers, self.activation, flat), width
