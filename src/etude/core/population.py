"""P independent members as one batched computation: their parameters, their random numbers, their settings.

Every tensor of a population leads with the axis P, every product is batched over it, and every random number comes
from the member's own stream, so that member k equals the run of that member alone, bit for bit on a CPU with one
thread. What a kernel does with P = 1 must be what it does for each of more: see `affine` of
`policies/control/networks.py`.
"""

from __future__ import annotations

import copy
import dataclasses
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from etude.core.errors import ConfigError
from etude.core.part import Part
from etude.core.streams import Stream

if TYPE_CHECKING:
    from etude.core.method import Method

M = TypeVar("M", bound="Method")
CPU = torch.device("cpu")
"""Where environments and random numbers are."""


@dataclasses.dataclass(frozen=True)
class Member:
    """One member: its seed, and the fields of the method that are its own, by path."""

    seed: int
    settings: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def label(self) -> str:
        """The settings as text, the same for members that differ in seed only."""
        return ", ".join(f"{k.rpartition('.')[2]}={v:g}" for k, v in self.settings.items())


class Population:
    """Who is trained together.

    Args:
        members: at least one; `size` counts them.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = list(members)
        self.size = len(self.members)
        self.streams = [Stream(m.seed) for m in self.members]

    def each(self, count: int, name: str) -> Population:
        """`count` networks of every member, one after another, each with random numbers of its own."""
        several = copy.copy(self)
        several.members = [m for m in self.members for _ in range(count)]
        several.size = len(several.members)
        several.streams = [s.split(name, i) for s in self.streams for i in range(count)]
        return several

    def draw(self, *names: str | int, of: Callable[[torch.Generator], Tensor]) -> Tensor:
        """[P, ...] what `of` draws from each member's stream of this name."""
        return torch.stack([of(s.split(*names).torch) for s in self.streams])


Operand: TypeAlias = "float | Tensor | PerMember"
"""What may stand beside a number per member in a formula."""


class PerMember:
    """A number per member that stands in a formula where a float would.

    With floats it computes as Python does; with a tensor [P, ...] it takes part as [P, 1, ...] in the tensor's dtype,
    which is what torch makes of a float. So every member computes, bit for bit, what it would alone.

    >>> low = PerMember([0.1, 0.2])
    >>> torch.full((2, 3), 2.0).clamp(1 - low, 1 + low)[:, 0]
    tensor([1.1000, 1.2000])
    """

    def __init__(self, numbers: Sequence[float]) -> None:
        self.numbers = tuple(float(x) for x in numbers)
        self.values = torch.tensor(self.numbers, dtype=torch.float64)[:, None]

    def like(self, tensor: Tensor) -> Tensor:
        """The numbers as [P, 1, ...], as many axes as the tensor has, in its dtype."""
        dtype = tensor.dtype if tensor.is_floating_point() else torch.get_default_dtype()
        return self.values.to(tensor.device, dtype).view(-1, *[1] * (tensor.dim() - 1))

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> Any:  # fmt: skip
        given = (*args, *(kwargs or {}).values())
        shape = max((x for x in given if isinstance(x, Tensor)), key=Tensor.dim)

        bounds = func in (torch.Tensor.clamp, torch.clamp)  # which takes two numbers or two tensors

        def plain(x: object) -> object:
            if isinstance(x, PerMember):
                return x.like(shape)
            return shape.new_tensor(x) if bounds and isinstance(x, (int, float)) else x

        return func(*map(plain, args), **{k: plain(v) for k, v in (kwargs or {}).items()})

    def _with(self, function: Callable[[Any, Any], Any], other: Operand) -> Any:
        if isinstance(other, Tensor):
            return function(self.like(other), other)
        others = other.numbers if isinstance(other, PerMember) else [other] * len(self.numbers)
        return PerMember([function(a, b) for a, b in zip(self.numbers, others)])

    def __add__(self, other: Operand) -> Any:
        return self._with(operator.add, other)

    def __sub__(self, other: Operand) -> Any:
        return self._with(operator.sub, other)

    def __mul__(self, other: Operand) -> Any:
        return self._with(operator.mul, other)

    def __truediv__(self, other: Operand) -> Any:
        """As torch divides a float by a tensor: times the reciprocal."""
        if isinstance(other, Tensor):
            return other.reciprocal() * self.like(other)
        return self._with(operator.truediv, other)

    def __pow__(self, other: Operand) -> Any:
        return self._with(operator.pow, other)

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: float) -> PerMember:
        return PerMember([other - x for x in self.numbers])

    def __rtruediv__(self, other: float) -> PerMember:
        return PerMember([other / x for x in self.numbers])

    def __rpow__(self, other: float) -> PerMember:
        return PerMember([other**x for x in self.numbers])

    def __neg__(self) -> PerMember:
        return PerMember([-x for x in self.numbers])

    def __bool__(self) -> bool:
        raise ConfigError("This field differs between the members, and the part asks whether it is zero or not.")

    def __repr__(self) -> str:
        return f"PerMember({list(self.numbers)})"


Number = float | PerMember
"""One for all members, or one for each."""


def settle(method: M, population: Population) -> M:
    """Give the bound method's fields their value per member.

    Raises ConfigError for a field that shapes the work or a value out of range, UnknownNameError for no field at all.
    """
    parts = method.parts()
    fields: dict[str, dict[str, None]] = {}
    for path in (p for m in population.members for p in m.settings):
        where, _, field = path.rpartition(".")
        fields.setdefault(where, {})[field] = None
    for where, names in fields.items():
        if not where and all(isinstance(method.slots().get(f), float) for f in names):
            for f in names:  # a number of the method itself
                own_numbers = [float(m.settings.get(f, method.slots()[f])) for m in population.members]
                object.__setattr__(method, f, PerMember(own_numbers))
            continue
        if where not in parts:
            raise _shapes_the_work(where or next(iter(names)))
        own = [
            {f: m.settings[f"{where}.{f}"] for f in names if f"{where}.{f}" in m.settings} for m in population.members
        ]
        each = [parts[where].replace(**settings) for settings in own]
        for field in names:
            numbers = [getattr(part, field) for part in each]
            if not all(isinstance(x, float) for x in numbers):
                raise _shapes_the_work(f"{where}.{field}")
            parts[where].settle(field, PerMember(numbers))
    return method


def _shapes_the_work(path: str) -> ConfigError:
    return ConfigError(
        f"{path} cannot differ between the members of one run: only real numbers inside formulas can "
        "(a learning rate, a clip, a coefficient). Sizes and choices shape the work: compare runs instead."
    )


def per_member(part: Part, function: Callable[[Any], float]) -> Number:
    """A function of the part as each member has it: one number, or one per member where fields of it differ."""
    members = max(_sizes(part), default=0)
    return PerMember([function(_of_member(part, k)) for k in range(members)]) if members else function(part)


def _sizes(part: Part) -> Iterator[int]:
    """How many numbers the fields have that differ between members, those of parts inside included."""
    for value in part.fields().values():
        if isinstance(value, PerMember):
            yield len(value.numbers)
        elif isinstance(value, Part):
            yield from _sizes(value)


def _of_member(part: Part, k: int) -> Part:
    """The part as member k has it."""
    own: dict[str, Any] = {}
    for name, value in part.fields().items():
        if isinstance(value, PerMember):
            own[name] = value.numbers[k]
        elif isinstance(value, Part):
            own[name] = _of_member(value, k)
    return part.replace(**own)


class Numbers(nn.Module):
    """Numbers of every member that are trained as weights are, [P, K].

    Args:
        starts: [P] each by name; `names` keeps their order.
    """

    def __init__(self, starts: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.names, self.numbers = tuple(starts), nn.Parameter(torch.stack(list(starts.values()), 1))

    def forward(self) -> Tensor:
        return self.numbers


class FlatParameters:
    """The parameters of several population modules as one tensor [P, D], of which theirs are views.

    So clipping, Adam and conjugate gradients are a few operations however many layers there are. `gradient` [P, D]
    holds their gradients the same way.

    Args:
        count: M networks of every member, one after another: parameters are [P M, ...], and the flat ones [P, M D].
        streams: of every member, for optimizers whose steps draw random numbers; empty where there are none.
    """

    def __init__(self, modules: Mapping[str, nn.Module], count: int = 1, streams: Sequence[Stream] = ()) -> None:
        self.modules, self.streams = dict(modules), tuple(streams)
        named = [(f"{m}.{k}", p) for m, module in self.modules.items() for k, p in module.named_parameters()]
        networks = named[0][1].shape[0]
        self.networks = torch.cat([p.detach().reshape(networks, -1) for _, p in named], 1)
        self.values = self.networks.view(networks // count, -1)
        self.gradients = torch.zeros_like(self.networks)
        self.gradient = self.gradients.view_as(self.values)
        self.slices: dict[str, slice] = {}
        start = 0
        for name, parameter in named:
            end = start + parameter[0].numel()
            self.slices[name] = slice(start, end)
            parameter.data = self.networks[:, start:end].view(parameter.shape)
            start = end
        self.leaves = [p for _, p in named]

    def differentiate(self, loss: Tensor, again: bool = False) -> None:
        """Put the gradient of the sum of a loss [P] into `gradient`; 0 for parameters that have no part in it.

        Args:
            again: whether another loss will be differentiated through the same operations.
        """
        each = torch.ones_like(loss)
        self.put(torch.autograd.grad(loss, self.leaves, each, materialize_grads=True, retain_graph=again))

    def put(self, gradients: Sequence[Tensor]) -> None:
        """Put these of each parameter, in order, into `gradient`."""
        networks = self.networks.size(0)
        torch.cat([g.reshape(networks, -1) for g in gradients], 1, out=self.gradients)

    def shared(self, module: nn.Module, only: int | None = None) -> nn.Module:
        """A copy of one of the modules that reads these very numbers, without gradient to them.

        Args:
            only: of M networks of every member the one that is read; None: all.
        """
        names = {id(p): name for name, p in zip(self.slices, self.leaves)}
        places = [names[id(p)] for p in module.parameters()]
        twin, count = copy.deepcopy(module), len(self.networks) // len(self.values)
        for name, parameter in zip(places, twin.parameters()):
            rows = self.networks[:, self.slices[name]]
            rows = rows if only is None else rows[only::count]
            parameter.requires_grad_(False)
            parameter.data = rows.view(len(rows), *parameter.shape[1:])
        return twin

    def of(self, module: str) -> slice:
        """The columns of one module."""
        slices = [s for name, s in self.slices.items() if name.startswith(f"{module}.")]
        return slice(slices[0].start, slices[-1].stop) if slices else slice(0, 0)

    def named(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter [P, ...] by name."""
        for name, module in self.modules.items():
            for key, parameter in module.named_parameters():
                yield f"{name}.{key}", parameter.detach()

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Set every parameter. Raises KeyError for one that is missing, RuntimeError for another shape."""
        for name, parameter in self.named():
            parameter.copy_(tensors[name])
