"""What a policy remembers: recurrent layers over the population axis."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from etude.core.fields import Count
from etude.core.population import Population
from etude.core.step_slots import Memory
from etude.policies.control.activations import sigmoid
from etude.policies.control.networks import Linear, affine, orthogonal


@dataclass
class Past:
    """What came before N = T n rows: T steps, time first, of n sequences of every member.

    Args:
        memory: [P, n, S] what was remembered before the first step.
        begins: [P, T, n] where an episode begins, so that nothing from before is remembered.
    """

    memory: Tensor
    begins: Tensor


class Gated(nn.Module):
    """The recurrence of `GRU`: input weights [P, W, 3 H], recurrent weights [P, H, 3 H]; reset, update, candidate.

    `size` is S, what is kept of a sequence between two steps: here H.
    """

    def __init__(self, population: Population, name: str, inputs: int, width: int) -> None:
        super().__init__()
        self.size = width
        self.input = Linear(population, f"{name}.input", inputs, 3 * width, gain=1.0)
        each = [
            orthogonal(population, f"{name}.{gate}", width, width, 1.0) for gate in ("reset", "update", "candidate")
        ]
        self.weight = nn.Parameter(torch.cat(each, 2))
        self.bias = nn.Parameter(torch.zeros(population.size, 1, 3 * width))

    def forward(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor]:
        """Features [P, N, W] to what is said [P, N, H] and what is remembered after every step [P, N, S]."""
        h, kept, outputs = past.memory, (~past.begins)[..., None].to(x.dtype), []
        gates = self.input(x).unflatten(1, past.begins.shape[1:])
        for now, keep in zip(gates.unbind(1), kept.unbind(1)):
            h = h * keep
            ours, candidate = now.split([2 * self.size, self.size], -1)
            theirs, recalled = affine(h, self.weight, self.bias).split([2 * self.size, self.size], -1)
            reset, update = sigmoid(ours + theirs).chunk(2, -1)
            new = torch.tanh(candidate + reset * recalled)
            h = new + update * (h - new)
            outputs.append(h)
        states = torch.cat(outputs, 1)
        return states, states


class LongShort(nn.Module):
    """The recurrence of `LSTM`: input weights [P, W, 4 H], recurrent weights [P, H, 4 H]; input, forget, cell, output.

    What is kept is what was said and the cell, side by side: S = 2 H.
    """

    def __init__(self, population: Population, name: str, inputs: int, width: int) -> None:
        super().__init__()
        self.size, self.width = 2 * width, width
        self.input = Linear(population, f"{name}.input", inputs, 4 * width, gain=1.0)
        gates = ("write", "forget", "cell", "output")
        each = [orthogonal(population, f"{name}.{gate}", width, width, 1.0) for gate in gates]
        self.weight = nn.Parameter(torch.cat(each, 2))
        self.bias = nn.Parameter(torch.zeros(population.size, 1, 4 * width))

    def forward(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor]:
        """Features [P, N, W] to what is said [P, N, H] and what is remembered after every step [P, N, 2 H]."""
        kept, said, states = (~past.begins)[..., None].to(x.dtype), [], []
        h, cell = past.memory.chunk(2, -1)
        gates = self.input(x).unflatten(1, past.begins.shape[1:])
        for now, keep in zip(gates.unbind(1), kept.unbind(1)):
            h, cell = h * keep, cell * keep
            write, forget, new, output = (now + affine(h, self.weight, self.bias)).chunk(4, -1)
            cell = sigmoid(forget) * cell + sigmoid(write) * torch.tanh(new)
            h = sigmoid(output) * torch.tanh(cell)
            said.append(h)
            states.append(torch.cat([h, cell], -1))
        return torch.cat(said, 1), torch.cat(states, 1)


class LSTM(Memory):
    """Long short-term memory (doi:10.1162/neco.1997.9.8.1735) after the network, reset where an episode begins.

        i, f, o = sigmoid(W x + U h),  g = tanh(W_g x + U_g h),  c <- f c + i g,  h <- o tanh(c)

    with biases on both sides, as torch's LSTM has them. Weights start orthogonal, biases at 0.

    Shapes: features [P, N, W] -> [P, N, width]; it remembers 2 width numbers.

    >>> from etude.core.population import Member
    >>> module, width = LSTM(width=64).build(10, Population([Member(0)]), "memory")
    >>> width, module.size
    (64, 128)
    """

    width: Count = 64

    def build(self, width: int, population: Population, name: str) -> tuple[nn.Module, int]:
        return LongShort(population, name, width, self.width), self.width


class GRU(Memory):
    """A gated recurrent unit (arXiv:1406.1078) after the network's layers, reset where an episode begins.

        r = sigmoid(W_r x + U_r h),  z = sigmoid(W_z x + U_z h),  n = tanh(W_n x + r (U_n h)),  h <- (1 - z) n + z h

    with biases on both sides, as torch's GRU has them. Weights start orthogonal, biases at 0.

    Shapes: features [P, N, W] -> [P, N, width].

    >>> from etude.core.population import Member
    >>> GRU(width=64).build(10, Population([Member(0)]), "memory")[1]
    64
    """

    width: Count = 64

    def build(self, width: int, population: Population, name: str) -> tuple[nn.Module, int]:
        return Gated(population, name, width, self.width), self.width
