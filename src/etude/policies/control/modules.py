"""A `torch.nn.Module` of somebody's own as a network of a population."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from etude.core.errors import ConfigError
from etude.core.population import Population
from etude.core.registry import load_attribute
from etude.core.step_slots import Network


class OwnModule(Network):
    """A `torch.nn.Module` by name, as `--set policy.network=my.py:Net` writes it.

    The class is called with the shape of one observation, or with nothing, and maps [N, *shape] to [N, width]. Every
    member has one of its own, made under its own random numbers; they are computed together by
    `torch.func.functional_call` and `vmap`. That takes about twice as long as a built-in network of the same size on
    minibatches of 256, and up to ten times on 8 rows (ten members, 64 wide, one thread); its last bits may depend on
    how many members there are, and `environment.json` says whether they do.

    Args:
        module: 'file.py:Class' or 'package.module:Class'.

    Raises: ConfigError for what is no such module, for random numbers in the forward pass (Dropout), and where what is
        said of an observation depends on those beside it or buffers are written (BatchNorm).

    Shapes: [P, N, *shape] -> [P, N, width].

    >>> from etude.core.population import Member
    >>> network, width = OwnModule("torch.nn:Flatten").build((2, 3), Population([Member(0), Member(1)]), "policy")
    >>> network(torch.zeros(2, 5, 2, 3)).shape
    torch.Size([2, 5, 6])
    """

    module: str

    def build(self, shape: tuple[int, ...], population: Population, name: str) -> tuple[nn.Module, int]:
        thing = load_attribute(self.module)
        if not (isinstance(thing, type) and issubclass(thing, nn.Module)):
            raise ConfigError(f"{name}: {self.module} must be a class of torch.nn.Module, got {thing!r}.")
        each = []
        for stream in population.streams:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(stream.split("init", f"{name}.module").key >> 1)
                each.append(self._called(thing, tuple(shape), name))
        built = Members(each)
        with torch.no_grad():
            return built, self._width(built, tuple(shape), population.size, name)

    def _called(self, cls: type[nn.Module], shape: tuple[int, ...], name: str) -> nn.Module:
        try:
            takes = bool(inspect.signature(cls).parameters) and not _optional(cls)
            return cls(shape) if takes else cls()
        except Exception as error:
            raise ConfigError(
                f"{name}: {self.module} cannot be made: {type(error).__name__}: {error}. It is called with the shape "
                f"of one observation, here {shape}, or with nothing if all its arguments have defaults."
            ) from error

    def _width(self, built: Members, shape: tuple[int, ...], members: int, name: str) -> int:
        """The width of what it makes; it is tried on two observations."""
        kept = [x.clone() for x in built.buffers()]
        rows = torch.zeros(members, 2, *shape)
        try:
            out = built(rows)
            rows[:, 1] = 1.0
            again = built(rows)
        except Exception as error:
            drops = sorted({type(m).__name__ for m in built.plain.modules() if "Dropout" in type(m).__name__})
            why = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            if drops:
                why = f"{drops[0]} draws random numbers in the forward pass, where what acts must be what learns"
            raise ConfigError(f"{name}: {self.module} cannot be computed for all members at once: {why}.") from error
        if not isinstance(out, Tensor) or out.dim() != 3 or out.shape[:2] != (members, 2):
            got = list(out.shape[1:]) if isinstance(out, Tensor) else type(out).__name__
            raise ConfigError(f"{name}: {self.module} must map {[2, *shape]} to [2, width], got {got}.")
        if not torch.allclose(out[:, 0], again[:, 0], atol=1e-5) or any(
            not torch.equal(a, b) for a, b in zip(kept, built.buffers())
        ):
            raise ConfigError(
                f"{name}: what {self.module} says of one observation depends on the others beside it, or it writes "
                "into its buffers in the forward pass, as BatchNorm does: take LayerNorm or GroupNorm."
            )
        return int(out.shape[2])


def _optional(cls: type[nn.Module]) -> bool:
    """Whether all arguments have defaults."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    given = inspect.signature(cls).parameters.values()
    return all(p.default is not inspect.Parameter.empty or p.kind in kinds for p in given)


class Members(nn.Module):
    """One module for each member, computed together: parameters and buffers [P, ...]."""

    def __init__(self, each: list[nn.Module]) -> None:
        super().__init__()
        parameters, buffers = stack_module_state(each)
        self.hidden = (each[0].to("meta"),)  # in a tuple, so that its parameters are nobody's
        self.names: dict[str, str] = {}
        for kept, named in ((True, parameters), (False, buffers)):
            for name, value in named.items():
                self.names[name] = name.replace(".", "/")
                if kept:
                    self.register_parameter(self.names[name], nn.Parameter(value.detach()))
                else:
                    self.register_buffer(self.names[name], value)

    @property
    def plain(self) -> nn.Module:
        """The module, without numbers."""
        return self.hidden[0]

    def forward(self, x: Tensor) -> Tensor:
        """[P, N, ...] -> [P, N, width]."""
        state = {name: getattr(self, own) for name, own in self.names.items()}
        if torch.compiler.is_exporting():  # of one member
            own = {name: value[0] for name, value in state.items()}
            alone: Tensor = functional_call(self.plain, own, (x[0],))[None]
            return alone
        found: Tensor = vmap(lambda own, rows: functional_call(self.plain, own, (rows,)))(state, x)
        return found
