"""Updates of the methods that learn from a replay, against the same written with torch's own layers and optimizers.

Everything but the random numbers is computed anew from the papers: layers, losses, Adam, slow copies, one member after
another. To 1e-5 in float32 and 1e-9 in float64.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from etude.core.edit import set_value, set_values
from etude.core.population import Member
from etude.core.streams import Stream
from etude.core.transitions import Transitions
from etude.experience.stretches import Stretches
from etude.loops.off_policy import OffPolicyLoop
from etude.methods.value.mrq.actions import OneHots
from etude.policies.control.units import Indices, gumbel
from etude.tasks.control.cartpole import cartpole
from etude.tasks.control.pendulum import pendulum
from replay_toys import REPLAY, acts_in_boxes, fill, small, sooner

GAMMA, UPDATES, MEMBERS = 0.99, 4, 2
torch.set_num_threads(1)


class NoisyLayer(nn.Linear):
    """A linear layer with a deviation for each of its numbers, as the paper of noisy networks has it."""

    def __init__(self, inputs: int, outputs: int, sigmas: tuple[Tensor, Tensor]) -> None:
        super().__init__(inputs, outputs, dtype=sigmas[0].dtype)
        self.weight_sigma, self.bias_sigma = map(nn.Parameter, sigmas)

    def noisy(self, x: Tensor, numbers: Tensor) -> Tensor:
        """With independent normal numbers, of which the inputs' come first."""
        f = torch.copysign(numbers.abs() ** 0.5, numbers)
        inputs, outputs = f[: self.in_features], f[self.in_features :]
        weight = self.weight + self.weight_sigma * torch.outer(outputs, inputs)
        return functional.linear(x, weight, self.bias + self.bias_sigma * outputs)


class Net(nn.Module):
    """Two hidden layers with rectifiers, of one network among the rows [P M, ...] of a checkpoint."""

    def __init__(self, tensors: dict[str, Tensor], name: str, row: int) -> None:
        super().__init__()
        keys = [f"{name}.body.layers.0", f"{name}.body.layers.1", f"{name}.head"]
        if f"{name}.body.body.layers.0.weight" in tensors:  # a policy whose body is the critic
            keys = [k.replace(".body.", ".body.body.") for k in keys[:2]] + [f"{name}.body.head"]
        keys = [k if f"{k}.weight" in tensors else f"{k}.linear" for k in keys]  # a dueling layer holds a plain one
        self.layers = nn.ModuleList()
        for key in keys:
            weight, bias = tensors[f"{key}.weight"][row], tensors[f"{key}.bias"][row, 0]
            layer: nn.Linear = nn.Linear(*weight.shape, dtype=weight.dtype)
            if f"{key}.weight_sigma" in tensors:
                sigmas = tensors[f"{key}.weight_sigma"][row].T.clone(), tensors[f"{key}.bias_sigma"][row, 0].clone()
                layer = NoisyLayer(*weight.shape, sigmas)
            layer.weight.data, layer.bias.data = weight.T.clone(), bias.clone()
            self.layers.append(layer)

    def forward(self, *inputs: Tensor) -> Tensor:
        x = torch.cat(inputs, -1)
        for layer in self.layers[:-1]:
            x = functional.relu(layer(x))
        found: Tensor = self.layers[-1](x)
        return found

    def noisy(self, x: Tensor, normals: Callable[[str, Tensor], Tensor], name: str) -> Tensor:
        """The same with the numbers of this name, layer by layer."""
        sizes = [layer.in_features + layer.out_features for layer in self.layers]
        each = normals(name, x.new_zeros(1, sum(sizes)))[0].split(sizes)
        for layer, numbers in zip(self.layers[:-1], each):
            x = functional.relu(layer.noisy(x, numbers))
        found: Tensor = self.layers[-1].noisy(x, each[-1])
        return found

    def flat(self) -> Tensor:
        return torch.cat([p.detach().T.reshape(-1) if p.dim() == 2 else p.detach() for p in self.parameters()])


class Normed(Net):
    """Layers that are normalised without parameters before their activation, the last one too or not."""

    def __init__(self, tensors: dict[str, Tensor], keys: list[str], row: int, activation: Any, last: bool) -> None:
        nn.Module.__init__(self)
        self.layers, self.activation, self.last = nn.ModuleList(), activation, last
        for key in keys:
            weight, bias = tensors[f"{key}.weight"][row], tensors[f"{key}.bias"][row, 0]
            layer = nn.Linear(*weight.shape, dtype=weight.dtype)
            layer.weight.data, layer.bias.data = weight.T.clone(), bias.clone()
            self.layers.append(layer)

    def forward(self, *inputs: Tensor) -> Tensor:
        x = torch.cat(inputs, -1)
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if self.last or i < len(self.layers) - 1:
                x = self.activation(functional.layer_norm(x, x.shape[-1:]))
        return x


class Hyper(Net):
    """A critic of one hidden layer, whose numbers a residual network says: of two widths, with two blocks each."""

    def __init__(self, tensors: dict[str, Tensor], name: str, row: int) -> None:
        nn.Module.__init__(self)
        self.layers = nn.ModuleList()
        keys = [f"{name}.primary.stages.{i}.{k}" for i in range(2) for k in range(5)]
        for key in [*keys, f"{name}.first.linear", f"{name}.last.linear"]:
            weight, bias = tensors[f"{key}.weight"][row], tensors[f"{key}.bias"][row, 0]
            layer = nn.Linear(*weight.shape, dtype=weight.dtype)
            layer.weight.data, layer.bias.data = weight.T.clone(), bias.clone()
            self.layers.append(layer)

    def forward(self, *inputs: Tensor) -> Tensor:
        x, y = inputs
        for stage in (self.layers[:5], self.layers[5:10]):
            x = stage[0](x)
            for inner, outer in (stage[1:3], stage[3:5]):
                x = x + outer(functional.relu(inner(functional.relu(x))))
        said = self.layers[10](x).view(len(x), y.shape[-1] + 2, -1)
        w, scale, bias = said[:, :-2], 1 + said[:, -2], said[:, -1]
        h = functional.relu(torch.bmm(y[:, None], w)[:, 0] * scale + bias)
        said = self.layers[11](x)
        w, scale, bias = said[:, :-2], 1 + said[:, -2], said[:, -1]
        return ((h * w).sum(-1) * scale + bias)[:, None]


class Batches:
    """What the loop draws in each update: rows, and the normal numbers under each name."""

    def __init__(self, loop: OffPolicyLoop) -> None:
        self.loop, self.stretches = loop, Stretches(loop.population, "learn")

    def windows(self, update: int) -> list[Transitions]:
        """What the encoder reads in this update."""
        loop, found = self.loop, []
        part = loop.updater.offering.get("encoder")
        if part is None or update % part.learning.every:
            return []
        for turn in range(part.learning.epochs):
            draw = loop.updater.own["encoder"].at(update // part.learning.every * part.learning.epochs + turn)
            index = loop.method.sampling.draw(loop.collector.store, draw).index
            found.append(part.sampling.read(loop.collector.store, index))  # type: ignore[union-attr]
        return found

    def next(self, update: int) -> tuple[Transitions, Callable[[str, Tensor], Tensor]]:
        loop = self.loop
        batch = loop.method.sampling.draw(loop.collector.store, self.stretches.at(update))

        def normal(name: str, like: Tensor) -> Tensor:
            shape = like.shape[1:]
            relaxed = isinstance(loop.collector.spread, OneHots) and name.startswith("policy")
            of = (lambda g, n: gumbel((n, *shape), g)) if relaxed else lambda g, n: torch.randn(n, *shape, generator=g)
            return self.stretches.at(update)(name, of).clone()

        return batch, normal


def own_numbers(normal: Callable[[str, Tensor], Tensor], k: int, name: str, like: Tensor) -> Tensor:
    """Member k's."""
    return normal(name, like[None])[k]


def follow(copies: Iterator[Tensor], networks: Iterator[Tensor], tau: float) -> None:
    with torch.no_grad():
        for slow, fast in zip(copies, networks, strict=True):
            slow.copy_(tau * fast + (1 - tau) * slow)


def adam(nets: list[Net], lr: float) -> list[torch.optim.Adam]:
    return [torch.optim.Adam(net.parameters(), lr) for net in nets]


def stepped(optimizers: list[torch.optim.Adam], loss: Tensor, norms: list[Net] | None = None) -> None:
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for net in norms or ():
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
    for optimizer in optimizers:
        optimizer.step()


class Own:
    """One member of a method, from the loop's weights before any update."""

    def __init__(self, tensors: dict[str, Tensor], k: int, critics: int) -> None:
        of = Hyper if "critic.first.linear.weight" in tensors else Net
        if of is Hyper or "critic.head.weight" in tensors:
            self.critics: list[Net] = [of(tensors, "critic", k * critics + i) for i in range(critics)]
            self.policy = Net(tensors, "policy", k)
            self.slow_policy = copy.deepcopy(self.policy)
        else:
            self.critics = [Net(tensors, "policy", k)]
        self.slow = copy.deepcopy(self.critics)
        if "replay-preferences.head.weight" in tensors:
            self.models = [Net(tensors, "replay-preferences", 3 * k + i) for i in range(3)]


class WorldModel(nn.Module):
    """MR.Q's encoder of one member."""

    def __init__(self, tensors: dict[str, Tensor], k: int) -> None:
        super().__init__()
        at = "policy.encoder"
        self.states = Normed(tensors, [f"{at}.states.layers.{i}" for i in range(2)], k, functional.elu, last=True)
        self.actions = Normed(tensors, [f"{at}.actions"], k, None, last=False)
        pairs = [*(f"{at}.pairs.layers.{i}" for i in range(2)), f"{at}.last"]
        self.pairs = Normed(tensors, pairs, k, functional.elu, last=False)
        self.model = Normed(tensors, [f"{at}.model"], k, None, last=False)

    def join(self, zs: Tensor, actions: Tensor) -> Tensor:
        found: Tensor = self.pairs(zs, functional.elu(self.actions(actions)))
        return found

    def flat(self) -> Tensor:
        return torch.cat([net.flat() for net in (self.states, self.actions, self.pairs, self.model)])


class OwnModelled(Own):
    """One member of MR.Q."""

    def __init__(self, tensors: dict[str, Tensor], k: int, critics: int) -> None:
        keys = ["body.layers.0", "body.layers.1", "head"]
        self.critics = [
            Normed(tensors, [f"critic.{x}" for x in keys], k * critics + i, functional.elu, last=False)
            for i in range(critics)
        ]
        self.policy = Normed(tensors, [f"policy.{x}" for x in keys], k, functional.relu, last=False)
        self.encoder = WorldModel(tensors, k)
        self.slow_policy, self.slow = copy.deepcopy(self.policy), copy.deepcopy(self.critics)
        self.slow_encoder = copy.deepcopy(self.encoder)


def follow_in_third(own: Own, update: int) -> None:
    if update % 3 == 0:
        follow(own.slow[0].parameters(), own.critics[0].parameters(), 1.0)


def dqn(own: Own, rows: Any, normals: Any, update: int, state: dict[str, Any]) -> None:
    if not state:
        state["critic"] = adam(own.critics, 2.3e-3)
    with torch.no_grad():
        y = rows.r + GAMMA * rows.live * own.slow[0](rows.next).max(-1).values
    q = own.critics[0](rows.s).gather(-1, rows.a.long())[:, 0]
    stepped(state["critic"], functional.smooth_l1_loss(q, y), own.critics)
    follow_in_third(own, update)


def map_dqn(own: Own, rows: Any, normals: Any, update: int, state: dict[str, Any]) -> None:
    """Won and lost apart; 0.5 ln x of values below 1, and half of what they are above 1 beyond."""
    if not state:
        state["critic"] = adam(own.critics, 2.3e-3)

    def values(said: Tensor) -> Tensor:
        return torch.where(said > 0, 2 * said + 1, (2 * said).exp())

    with torch.no_grad():
        following = values(own.slow[0](rows.next).view(len(rows.r), -1, 2))
        best = (following[..., 0] - following[..., 1]).argmax(-1)
        paid = torch.stack([rows.r.clamp(0, 1), (-rows.r).clamp(0, 1)], -1)
        worth = following[torch.arange(len(best)), best].clamp(0, 25)
        u = paid + 0.96 * rows.live[:, None] * worth
    q = own.critics[0](rows.s).view(len(rows.r), -1, 2)[torch.arange(len(best)), rows.a[:, 0].long()]
    with torch.no_grad():
        ubar = 0.9 * values(q).clamp(0, 25) + 0.1 * u
        y = torch.where(ubar > 1, 0.5 * (ubar - 1), 0.5 * ubar.clamp(min=0.01687).log())
    loss = functional.smooth_l1_loss(q, y, reduction="none").sum(-1).mean()
    stepped(state["critic"], loss, own.critics)
    follow_in_third(own, update)


def noisy_dqn(own: Own, rows: Any, normals: Any, update: int, state: dict[str, Any]) -> None:
    if not state:
        state["critic"] = adam(own.critics, 2.3e-3)
    with torch.no_grad():
        y = rows.r + GAMMA * rows.live * own.slow[0].noisy(rows.next, normals, "noise next copy").max(-1).values
    q = own.critics[0].noisy(rows.s, normals, "noise here").gather(-1, rows.a.long())[:, 0]
    stepped(state["critic"], functional.smooth_l1_loss(q, y), own.critics)
    follow_in_third(own, update)


def double_dqn(own: Own, rows: Any, normals: Any, update: int, state: dict[str, Any], dueling: bool = False) -> None:
    if not state:
        state["critic"] = adam(own.critics, 2.3e-3)

    def values(net: Net, seen: Tensor) -> Tensor:
        said: Tensor = net(seen)
        return said if not dueling else said[:, :1] + said[:, 1:] - said[:, 1:].mean(-1, keepdim=True)

    with torch.no_grad():
        best = values(own.critics[0], rows.next).argmax(-1, keepdim=True)
        y = rows.r + GAMMA * rows.live * values(own.slow[0], rows.next).gather(-1, best)[:, 0]
    q = values(own.critics[0], rows.s).gather(-1, rows.a.long())[:, 0]
    stepped(state["critic"], functional.smooth_l1_loss(q, y), own.critics)
    follow_in_third(own, update)


def chosen(net: Net, seen: Tensor, actions: Tensor, size: int) -> Tensor:
    """[N, K] of the choices that were made."""
    each = net(seen).view(len(seen), -1, size)
    return each[torch.arange(len(seen)), actions[:, 0].long()]


def projected(p: Tensor, rewards: Tensor, discounts: Tensor) -> Tensor:
    """Chances [N, 51] of returns from 0 to 100 moved, shrunk and put back, by floor and ceiling, atom by atom."""
    z, m = torch.linspace(0.0, 100.0, 51, dtype=p.dtype), torch.zeros_like(p)
    for n in range(len(p)):
        for i in range(51):
            b = float((rewards[n] + discounts[n] * z[i]).clamp(0.0, 100.0)) / 2.0
            low, high = math.floor(b), math.ceil(b)
            if low == high:
                m[n, low] += p[n, i]
            else:
                m[n, low] += p[n, i] * (high - b)
                m[n, high] += p[n, i] * (b - low)
    return m


def c51(own: Own, rows: Any, normals: Any, update: int, state: dict[str, Any]) -> None:
    """As the paper's algorithm 1 has it."""
    if not state:
        state["critic"] = adam(own.critics, 2.3e-3)
    z = torch.linspace(0.0, 100.0, 51, dtype=rows.r.dtype)
    with torch.no_grad():
        chances = own.slow[0](rows.next).view(len(rows.r), -1, 51).softmax(-1)
        best = (chances * z).sum(-1).argmax(-1)
        m = projected(chances[torch.arange(len(best)), best], rows.r, GAMMA * rows.live)
    logs = chosen(own.critics[0], rows.s, rows.a, 51).log_softmax(-1)
    stepped(state["critic"], -(m * logs).sum(-1).mean(), own.critics)
    follow_in_third(own, update)


def rainbow(own: Own, rows: Any, normals: Any, update: int, state: dict[str, Any]) -> None:
    """Logits of V and A joined atom by atom; the network's means choose, its copy's chances are learned."""
    if not state:
        state["critic"] = adam(own.critics, 2.3e-3)
    z = torch.linspace(0.0, 100.0, 51, dtype=rows.r.dtype)

    def logs(net: Net, seen: Tensor, name: str) -> Tensor:
        each = net.noisy(seen, normals, name).view(len(seen), -1, 51)
        value, advantages = each[:, :1], each[:, 1:]
        found: Tensor = (value + advantages - advantages.mean(1, keepdim=True)).log_softmax(-1)
        return found

    with torch.no_grad():
        best = (logs(own.critics[0], rows.next, "noise next").exp() * z).sum(-1).argmax(-1)
        chances = logs(own.slow[0], rows.next, "noise next copy").exp()
        m = projected(chances[torch.arange(len(best)), best], rows.r, rows.discounts)
    said = logs(own.critics[0], rows.s, "noise here")[torch.arange(len(m)), rows.a[:, 0].long()]
    each = -(m * said).sum(-1)
    state["divergence"] = each.detach() + torch.special.xlogy(m, m).sum(-1)
    stepped(state["critic"], (rows.weights * each).mean(), own.critics)
    follow_in_third(own, update)


def qr_dqn(own: Own, rows: Any, normals: Any, update: int, state: dict[str, Any]) -> None:
    if not state:
        state["critic"] = adam(own.critics, 2.3e-3)
    with torch.no_grad():
        each = own.slow[0](rows.next).view(len(rows.r), -1, 50)
        best = each[torch.arange(len(each)), each.mean(-1).argmax(-1)]
        y = rows.r[:, None] + GAMMA * rows.live[:, None] * best
    theta, loss = chosen(own.critics[0], rows.s, rows.a, 50), torch.zeros((), dtype=rows.r.dtype)
    for i in range(50):
        u = y - theta[:, i : i + 1]
        huber = functional.huber_loss(theta[:, i : i + 1].expand_as(y), y, reduction="none")
        loss = loss + (torch.where(u < 0, 1 - (i + 0.5) / 50, (i + 0.5) / 50) * huber).mean(-1).mean()
    stepped(state["critic"], loss, own.critics)
    follow_in_third(own, update)


def deterministic(
    own: Own, rows: Any, y: Tensor, state: dict[str, Any], act: bool, tau: float, rates: tuple[float, float]
) -> None:
    if not state:
        state["critic"], state["policy"] = adam(own.critics, rates[1]), adam([own.policy], rates[0])
    stepped(state["critic"], sum(functional.mse_loss(c(rows.s, rows.a)[:, 0], y) for c in own.critics))  # type: ignore[arg-type]
    if act:
        stepped(state["policy"], -own.critics[0](rows.s, torch.tanh(own.policy(rows.s))).mean())
        follow(own.slow_policy.parameters(), own.policy.parameters(), tau)
        for slow, fast in zip(own.slow, own.critics, strict=True):
            follow(slow.parameters(), fast.parameters(), tau)


def ddpg(own: Own, rows: Any, normals: Any, update: int, state: dict[str, Any]) -> None:
    with torch.no_grad():
        y = rows.r + GAMMA * rows.live * own.slow[0](rows.next, torch.tanh(own.slow_policy(rows.next)))[:, 0]
    deterministic(own, rows, y, state, True, 0.001, (1e-4, 1e-3))


def td3(
    own: Own, rows: Any, normals: Any, update: int, state: dict[str, Any],
    rates: tuple[float, float] = (3e-4, 3e-4),
) -> None:  # fmt: skip
    with torch.no_grad():
        noise = (0.2 * normals("smoothing", rows.a)).clamp(-0.5, 0.5)
        a = (torch.tanh(own.slow_policy(rows.next)) + noise).clamp(-1, 1)
        y = rows.r + GAMMA * rows.live * torch.minimum(*(c(rows.next, a)[:, 0] for c in own.slow))
    deterministic(own, rows, y, state, update % 2 == 0, 0.005, rates)


def squashed(own: Own, seen: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """An action and its log-probability, by the change of variables."""
    mean, log_std = own.policy(seen).chunk(2, -1)
    normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
    u = mean + normal.stddev * noise
    a = torch.tanh(u)
    return a, (normal.log_prob(u) - torch.log(1 - a**2)).sum(-1)


def temperature(own: Own, rows: Any, state: dict[str, Any]) -> Tensor:
    """The one before this update; makes the optimizers in the first."""
    if not state:
        state["log"] = torch.zeros((), dtype=rows.r.dtype, requires_grad=True)
        state["critic"], state["policy"] = adam(own.critics, 3e-4), adam([own.policy], 3e-4)
        state["temperature"] = [torch.optim.Adam([state["log"]], 3e-4)]
    found: Tensor = state["log"].exp().detach()
    return found


def follow_slowly(own: Own) -> None:
    for slow, fast in zip(own.slow, own.critics, strict=True):
        follow(slow.parameters(), fast.parameters(), 0.005)


def sac(own: Own, rows: Any, normals: Any, update: int, state: dict[str, Any]) -> None:
    alpha = temperature(own, rows, state)
    with torch.no_grad():
        a, logp = squashed(own, rows.next, normals("policy next", rows.a))
        y = torch.minimum(*(c(rows.next, a)[:, 0] for c in own.slow)) - alpha * logp
        y = rows.r + GAMMA * rows.live * y
    stepped(state["critic"], sum(functional.mse_loss(c(rows.s, rows.a)[:, 0], y) for c in own.critics))  # type: ignore[arg-type]
    a, logp = squashed(own, rows.s, normals("policy here", rows.a))
    q = torch.minimum(*(c(rows.s, a)[:, 0] for c in own.critics))
    stepped(state["temperature"], -(state["log"] * (logp.detach() - 1.0)).mean())
    stepped(state["policy"], (alpha * logp - q).mean())
    follow_slowly(own)


def asked(own: Own, rows: Any, normals: Any, update: int, state: dict[str, Any]) -> None:
    """SAC, paid the mean of what three models say, whatever the environment did."""
    with torch.no_grad():
        said = []
        for model in own.models:
            x = torch.cat([rows.s, rows.a], -1)
            for layer in model.layers[:-1]:
                x = functional.leaky_relu(layer(x), 0.01)
            said.append(torch.tanh(model.layers[-1](x))[:, 0])
        rows.r = sum(said) / 3
    sac(own, rows, normals, update, state)


def sac_discrete(own: Own, rows: Any, normals: Any, update: int, state: dict[str, Any]) -> None:
    alpha = temperature(own, rows, state)
    with torch.no_grad():
        logs = own.policy(rows.next).log_softmax(-1)
        soft = torch.minimum(*(c(rows.next) for c in own.slow)) - alpha * logs
        y = rows.r + GAMMA * rows.live * (logs.exp() * soft).sum(-1)
    said = [c(rows.s).gather(-1, rows.a.long())[:, 0] for c in own.critics]
    stepped(state["critic"], sum(functional.mse_loss(q, y) for q in said))  # type: ignore[arg-type]
    logs = own.policy(rows.s).log_softmax(-1)
    with torch.no_grad():
        q = torch.minimum(*(c(rows.s) for c in own.critics))
    entropy = -(logs.exp() * logs).sum(-1).detach()
    stepped(state["temperature"], -(state["log"] * (0.98 * math.log(2) - entropy)).mean())
    stepped(state["policy"], (logs.exp() * (alpha * logs - q)).sum(-1).mean())
    follow_slowly(own)


def redq(own: Own, rows: Any, normals: Any, update: int, state: dict[str, Any]) -> None:
    """Policy and temperature take part in every second update here."""
    alpha = temperature(own, rows, state)
    with torch.no_grad():
        a, logp = squashed(own, rows.next, normals("policy next", rows.a))
        each = torch.stack([c(rows.next, a)[:, 0] for c in own.slow])
        two = normals("critics", each[:, 0]).argsort(descending=True)[:2]
        y = rows.r + GAMMA * rows.live * (each[two].min(0).values - alpha * logp)
    stepped(state["critic"], sum(functional.mse_loss(c(rows.s, rows.a)[:, 0], y) for c in own.critics))  # type: ignore[arg-type]
    if update % 2 == 0:
        a, logp = squashed(own, rows.s, normals("policy here", rows.a))
        q = torch.stack([c(rows.s, a)[:, 0] for c in own.critics]).mean(0)
        stepped(state["temperature"], -(state["log"] * (logp.detach() - 1.0)).mean())
        stepped(state["policy"], (alpha * logp - q).mean())
    follow_slowly(own)


def mdvi(own: Own, rows: Any, normals: Any, update: int, state: dict[str, Any]) -> None:
    """By the softmax's logarithms; <pi, q> - 0.1 KL - 0.01 sum pi log pi as they stand in the paper."""
    if not state:
        state["critic"], state["policy"] = adam(own.critics, 2.3e-3), adam([own.policy], 2.3e-3)

    def step(seen: Tensor) -> Tensor:
        logs, before = own.policy(seen).log_softmax(-1), own.slow_policy(seen).log_softmax(-1).detach()
        kl = functional.kl_div(before, logs, log_target=True, reduction="none").sum(-1)
        entropy = torch.distributions.Categorical(logits=logs).entropy()
        return (logs.exp() * own.slow[0](seen).detach()).sum(-1) - 0.1 * kl + 0.01 * entropy

    with torch.no_grad():
        y = rows.r + GAMMA * rows.live * step(rows.next)
    q = own.critics[0](rows.s).gather(-1, rows.a.long())[:, 0]
    stepped(state["critic"], functional.mse_loss(q, y), own.critics)
    stepped(state["policy"], -step(rows.s).mean(), [own.policy])
    follow_in_third(own, update)
    if update % 3 == 0:
        follow(own.slow_policy.parameters(), own.policy.parameters(), 1.0)


LINE = torch.linspace(-10, 10, 65, dtype=torch.float64)
BINS = LINE.sign() * (LINE.abs().exp() - 1)


def two_hot(rewards: Tensor) -> Tensor:
    """Number by number: the bins on both sides share it."""
    found = torch.zeros(len(rewards), 65, dtype=rewards.dtype)
    for n, reward in enumerate(rewards.tolist()):
        i = next(i for i in range(64) if reward < float(BINS[i + 1]))
        upper = (reward - float(BINS[i])) / (float(BINS[i + 1]) - float(BINS[i]))
        found[n, i], found[n, i + 1] = 1 - upper, upper
    return found


def unrolled(own: Any, window: Any, ends: bool) -> Tensor:
    """The encoder's loss on one member's windows [N, T, ...]."""
    width = own.encoder.states.layers[-1].out_features
    z, mask, loss = own.encoder.states(window.s[:, 0]), torch.ones(len(window.s), dtype=window.s.dtype), 0.0
    for t in range(window.s.shape[1]):
        mask = mask * window.counts[:, t]
        told = own.encoder.model(own.encoder.join(z, window.a[:, t]))
        z = told[:, 1 : 1 + width]
        with torch.no_grad():
            z_next = own.slow_encoder.states(window.next[:, t])
        loss = loss + ((z - z_next) ** 2 * mask[:, None]).mean()
        entropy = -(two_hot(window.r[:, t]) * told[:, 1 + width :].log_softmax(-1)).sum(-1)
        loss = loss + 0.1 * (entropy * mask).mean()
        if ends:
            loss = loss + 0.1 * ((told[:, 0] - (1 - window.live[:, t])) ** 2 * mask).mean()
    return loss  # type: ignore[return-value]


def renewed(own: Any, rows: Any, state: dict[str, Any]) -> None:
    """Copies, scales, and a burst of the encoder."""
    copies = [*own.slow, own.slow_policy, own.slow_encoder]
    for slow, fast in zip(copies, [*own.critics, own.policy, own.encoder], strict=True):
        slow.load_state_dict(fast.state_dict())
    state["before"], state["scale"] = state["scale"], float(rows.stored.rewards.abs().mean())
    for window in rows.windows:
        stepped(state["encoder"], unrolled(own, window, bool((rows.stored.live == 0).any())))


def mrq(own: Any, rows: Any, normals: Any, update: int, state: dict[str, Any], relaxed: bool = False) -> None:
    """Copies and the encoder in every second update here; the gradient of both critics is clipped at 20."""
    if not state:
        adamw = partial(torch.optim.AdamW, weight_decay=1e-4)
        state |= {"scale": 1.0, "before": 1.0, "encoder": [adamw(own.encoder.parameters(), 1e-4)]}
        both = [p for c in own.critics for p in c.parameters()]
        state["critic"], state["policy"] = [adamw(both, 3e-4)], [adamw(own.policy.parameters(), 3e-4)]
    if update % 2 == 0:
        renewed(own, rows, state)

    def act(u: Tensor, at: str) -> Tensor:
        return ((u + normals(f"policy {at}", u)) / 10.0).softmax(-1) if relaxed else torch.tanh(u)

    with torch.no_grad():
        zs = own.slow_encoder.states(rows.next)
        noise, a = (0.2 * normals("smoothing", rows.a)).clamp(-0.3, 0.3), act(own.slow_policy(zs), "next")
        a = functional.one_hot((a + noise / 2).argmax(-1), 2).to(a.dtype) if relaxed else (a + noise).clamp(-1, 1)
        q = torch.minimum(*(c(own.slow_encoder.join(zs, a))[:, 0] for c in own.slow))
        y = (rows.r + rows.discounts * state["before"] * q) / state["scale"]
        zs = own.encoder.states(rows.s)
        zsa = own.encoder.join(zs, rows.a)
    said = [c(zsa)[:, 0] for c in own.critics]
    state["critic"][0].zero_grad()
    sum(functional.smooth_l1_loss(q, y) for q in said).backward()  # type: ignore[union-attr]
    nn.utils.clip_grad_norm_([p for c in own.critics for p in c.parameters()], 20.0)
    state["critic"][0].step()
    state["errors"] = torch.stack([(q - y).abs() for q in said]).detach().amax(0)
    u = own.policy(zs)
    zsa = own.encoder.join(zs, act(u, "here"))
    value = sum(c(zsa).mean() for c in own.critics) / 2
    stepped(state["policy"], 1e-5 * u.square().mean() - value)


def lmc_lsvi(own: Own, rows: Any, normals: Any, update: int, state: dict[str, Any]) -> None:
    """Adaptive SGLD weight by weight, its noise drawn as the member's stream says; three rewards are summed."""
    net, k = own.critics[0], normals.args[1]
    if not state:
        state["m"], state["v"] = ([torch.zeros_like(p) for p in net.parameters()] for _ in range(2))
    with torch.no_grad():
        best = net(rows.next).argmax(-1, keepdim=True)
        y = rows.r + rows.discounts * own.slow[0](rows.next).gather(-1, best)[:, 0]
    q = net(rows.s).gather(-1, rows.a.long())[:, 0]
    gradients = torch.autograd.grad(functional.mse_loss(q, y), list(net.parameters()))
    stream = Stream(k).split("steps", "critic").split("langevin", update - 1)
    noise = torch.randn(len(net.flat()), generator=stream.torch, dtype=q.dtype)
    for p, g, m, v in zip(net.parameters(), gradients, state["m"], state["v"], strict=True):
        m.copy_(0.9 * m + 0.1 * g)
        v.copy_(0.999 * v + 0.001 * g**2)
        mine, noise = noise[: p.numel()], noise[p.numel() :]
        n = mine.view(p.T.shape).T if p.dim() == 2 else mine
        p.data += -1e-3 * (g + m / (v.sqrt() + 1e-8)) + 0.01 * math.sqrt(2e-3) * n
    follow_in_third(own, update)


class Leaky(nn.Module):
    """The layers of a net with a leaky rectifier after each, and layer norms or a last hidden vector of length 1."""

    def __init__(self, net: Net, layer_norm: bool) -> None:
        super().__init__()
        self.layers, self.layer_norm = net.layers, layer_norm

    def forward(self, *inputs: Tensor) -> Tensor:
        x = torch.cat(inputs, -1)
        for layer in self.layers[:-1]:
            x = layer(x)
            if self.layer_norm:
                x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
            x = functional.leaky_relu(x, 0.01)
        found: Tensor = self.layers[-1](x if self.layer_norm else x / x.norm(dim=-1, keepdim=True))
        return found


def stream_q(own: Own, rows: Any, normals: Any, update: int, state: dict[str, Any]) -> None:
    """One row; traces, their sum and the step's bound over all layers."""
    q = Leaky(own.critics[0], layer_norm=True)
    weights = list(q.parameters())
    here, a = q(rows.s)[0], int(rows.a[0, 0])
    with torch.no_grad():
        error = float(rows.r[0] + GAMMA * rows.live[0] * q(rows.next)[0].max() - here[a])
    gradients = torch.autograd.grad(here[a], weights)
    old = state.get("traces", [torch.zeros_like(w) for w in weights])
    traces = [GAMMA * 0.8 * z + g for z, g in zip(old, gradients)]
    bound = 1.0 * 2.0 * max(abs(error), 1.0) * float(sum(z.abs().sum() for z in traces))
    with torch.no_grad():
        for w, z in zip(weights, traces):
            w += error * z / max(bound, 1.0)
    over = bool(rows.ended[0]) or a != int(here.argmax())
    state["traces"] = [torch.zeros_like(z) if over else z for z in traces]


def stream_ac(
    own: Own, rows: Any, normals: Any, update: int, state: dict[str, Any], choices: bool = False
) -> None:  # fmt: skip
    """One row; traces of log pi and of V, both gradients from the weights before."""
    policy, v = (Leaky(net, layer_norm=True) for net in (own.policy, own.critics[0]))
    with torch.no_grad():
        error = float(rows.r[0] + GAMMA * rows.live[0] * v(rows.next)[0, 0] - v(rows.s)[0, 0])
    said, a = policy(rows.s)[0], rows.a[0]
    if choices:
        pi: Any = torch.distributions.Categorical(logits=said[None])
    else:
        pi = torch.distributions.Normal(said[: len(a)], functional.softplus(said[len(a) :]))
    along = pi.log_prob(a).sum() + 0.01 * float(np.sign(error)) * pi.entropy().sum()
    sought = [(policy, along, 3.0), (v, v(rows.s)[0, 0], 2.0)]
    gradients = [torch.autograd.grad(f, list(net.parameters())) for net, f, _ in sought]
    for i, ((net, _, kappa), found) in enumerate(zip(sought, gradients)):
        old = state.get(i, [torch.zeros_like(g) for g in found])
        traces = [GAMMA * 0.8 * z + g for z, g in zip(old, found)]
        bound = kappa * max(abs(error), 1.0) * float(sum(z.abs().sum() for z in traces))
        with torch.no_grad():
            for w, z in zip(net.parameters(), traces):
                w += error * z / max(bound, 1.0)
        state[i] = [torch.zeros_like(z) if rows.ended[0] else z for z in traces]


def avg(own: Own, rows: Any, normals: Any, update: int, state: dict[str, Any]) -> None:
    """One row; sigma from lists of all that was, both losses before either step."""
    actor = SimpleNamespace(policy=Leaky(own.policy, layer_norm=False))
    q = Leaky(own.critics[0], layer_norm=False)
    if not state:
        state |= {"worth": [], "gammas": [], "squares": [], "sum": 0.0}
        state["steps"] = [
            torch.optim.Adam(net.parameters(), lr, (0.0, 0.999))
            for net, lr in ((own.policy, 0.0063), (own.critics[0], 0.0087))
        ]
    a, logp = squashed(actor, rows.s, normals("policy here", rows.a))  # type: ignore[arg-type]
    with torch.no_grad():
        state["worth"].append(float(rows.r[0] - 0.07 * logp[0]))
        state["gammas"].append(GAMMA * float(rows.live[0]))
        state["sum"] += state["worth"][-1]
        if not rows.live[0]:
            state["squares"].append(state["sum"] ** 2)
        state["sum"] = 0.0 if rows.ended[0] else state["sum"]
        square = np.mean(state["squares"]) if state["squares"] else 0.0
        variance = max(np.var(state["worth"]) + square * np.var(state["gammas"]), 1e-4)
        sigma = 1.0 if not state["squares"] and variance <= 0.01 else math.sqrt(variance)
        after, after_logp = squashed(actor, rows.next, normals("policy next", rows.a))  # type: ignore[arg-type]
        y = rows.r + GAMMA * rows.live * (q(rows.next, after)[:, 0] - 0.07 * after_logp)
    losses = ((0.07 * logp - q(rows.s, a)[:, 0]).mean(), (((y - q(rows.s, rows.a)[:, 0]) / sigma) ** 2).mean())
    nets = (own.policy, own.critics[0])
    gradients = [torch.autograd.grad(loss, list(net.parameters())) for loss, net in zip(losses, nets)]
    for net, found, optimizer in zip(nets, gradients, state["steps"]):
        for p, g in zip(net.parameters(), found):
            p.grad = g
        optimizer.step()


def asynchronous(
    own: Own, rows: Any, normals: Any, update: int, state: dict[str, Any], sarsa: bool = False
) -> None:  # fmt: skip
    """Rows of one segment; the sum of their errors, and RMSProp with epsilon inside of the root."""
    weights = list(own.critics[0].parameters())
    with torch.no_grad():
        after = own.slow[0](rows.next)
        best = after.argmax(-1)
        done = [int(best[i]) if not sarsa or math.isnan(a) else int(a) for i, a in enumerate(rows.taken(best))]
        y = rows.r + rows.discounts * after[torch.arange(len(done)), torch.tensor(done)]
    q = own.critics[0](rows.s).gather(-1, rows.a.long())[:, 0]
    squares = state.setdefault("squares", [torch.zeros_like(p) for p in weights])
    for p, g, d in zip(weights, squares, torch.autograd.grad(((y - q) ** 2).sum(), weights)):
        g.copy_(0.99 * g + 0.01 * d * d)
        p.data -= 3e-3 * d / (g + 0.1).sqrt()
    follow_in_third(own, update)


FORMULAS: dict[str, Callable[..., None]] = {
    "dqn": dqn, "double-dqn": double_dqn, "dueling-dqn": partial(double_dqn, dueling=True), "c51": c51,
    "qr-dqn": qr_dqn, "noisy-dqn": noisy_dqn, "rainbow": rainbow, "mdvi": mdvi, "lmc-lsvi": lmc_lsvi,
    "map-dqn": map_dqn, "stream-x": stream_q, "stream-ac": stream_ac, "ddpg": ddpg, "td3": td3,
    "hyperl": partial(td3, rates=(3e-4, 5e-5)), "sac": sac, "sac-discrete": sac_discrete, "redq": redq,
    "avg": avg, "rlhf-survey": asked, "mrq": mrq, "one-step-q": asynchronous, "n-step-q": asynchronous,
    "one-step-sarsa": partial(asynchronous, sarsa=True),
}  # fmt: skip


def test_every_method_that_learns_from_a_replay_is_here() -> None:
    assert set(FORMULAS) == set(REPLAY)


class Rows:
    """A member's rows by short names."""

    def __init__(self, batch: Transitions, k: int) -> None:
        assert batch.next_observations is not None
        self.s, self.a, self.r, self.next = (
            x[k] for x in (batch.observations, batch.actions, batch.rewards, batch.next_observations)
        )
        self.ended = batch.terminated[k] | batch.truncated[k]
        self.live = (~batch.terminated[k]).to(self.r.dtype)
        self.discounts = None if batch.discounts is None else batch.discounts[k]
        self.taken = lambda best: batch.offers["next_actions"][k, :, 0] if "next_actions" in batch.offers else best
        self.weights = batch.offers["importance"][k] if "importance" in batch.offers else None

        assert batch.discounts is not None
        self.discounts = batch.discounts[k]
        self.counts = None if batch.weights is None else batch.weights[k]
        self.windows: list[Rows] = []
        self.stored: Any = None


PRECISIONS = [pytest.param(torch.float32, marks=pytest.mark.slow), torch.float64]
each_precision = pytest.mark.parametrize("precision", PRECISIONS, indirect=True, ids=str)


@pytest.fixture
def precision(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(torch.float32)


def quick(name: str) -> Any:
    """The method, small, with what happens seldom made to happen within the test."""
    found = small(REPLAY[name], heads=False)
    if found.policy.made_of_critic and found.critic.learning.target is not None:
        return set_value(found, "critic.learning.target.every=3")
    if name == "mdvi":
        return set_values(found, {"critic.learning.target.every": 3, "policy.learning.target.every": 3})
    if name == "mrq":
        return sooner(found, every=2)
    if name == "rlhf-survey":  # whose models learn elsewhere
        changes = {"learners.replay-preferences.learning.every": 100, "critic.learning.target.every": 1}
        return set_values(found, changes)
    if name == "redq":
        return set_values(found, {"policy.learning.every": 2, "learners.temperature.learning.every": 2})
    return found


@pytest.mark.parametrize("name", FORMULAS)
@each_precision
def test_updates_are_those_of_the_paper(name: str, precision: torch.dtype) -> None:
    method = quick(name)
    agree(method, pendulum if acts_in_boxes(method) else cartpole, FORMULAS[name], precision)


@pytest.mark.slow
@each_precision
def test_updates_of_relaxed_choices_are_those_of_the_paper(precision: torch.dtype) -> None:
    agree(quick("mrq"), cartpole, partial(mrq, relaxed=True), precision)


@pytest.mark.slow
@each_precision
def test_updates_of_an_actor_of_choices_are_those_of_the_paper(precision: torch.dtype) -> None:
    agree(quick("stream-ac"), cartpole, partial(stream_ac, choices=True), precision)


def agree(method: Any, task: Any, formula: Callable[..., None], precision: torch.dtype) -> None:
    """Some updates of the loop and of the formula, from the same weights, rows and noise."""
    loop = OffPolicyLoop(method, task, [Member(s) for s in range(MEMBERS)], 1)
    store, tensors = loop.collector.store, {k: v.clone() for k, v in loop.policy_tensors().items()}
    fill(store)
    newest, choices = method.sampling.newest, isinstance(loop.collector.spread, Indices)
    if choices:  # columns of them
        d = store.widths[0]
        store.rows[:, d] = (store.rows[:, d] > 0).to(precision)
    if isinstance(loop.collector.spread, OneHots):
        d, count = store.widths[:2]
        store.rows[:, d : d + count] = functional.one_hot(store.rows[:, d : d + count].argmax(-1), count).to(precision)
    critics, alone = method.critic.count, OwnModelled if loop.updater.encoder else Own
    members = [alone(tensors, k, critics) for k in range(MEMBERS)]
    states: list[dict[str, Any]] = [{} for _ in members]
    batches = Batches(loop)
    for update in range(UPDATES):
        if newest and update:  # another step
            kept = store.rows[:, store.widths[0]].clone()
            fill(store, update)
            if choices:
                store.rows[:, store.widths[0]] = kept
        windows, (batch, normal) = batches.windows(update + 1), batches.next(update)
        for k, own in enumerate(members):
            rows = Rows(batch, k)
            rows.windows, rows.stored = (
                [Rows(w, k) for w in windows],
                SimpleNamespace(rewards=store.rewards[k], live=store.live[k]),
            )
            formula(own, rows, partial(own_numbers, normal, k), update + 1, states[k])
        loop.updater.run(store, loop.updater.rates(0, 1))
    bound = 1e-5 if precision == torch.float32 else 1e-9
    after = loop.policy_tensors()
    moved = 0.0
    for k, own in enumerate(members):
        found = alone(after, k, critics)
        pairs = [(own.critics, found.critics)]
        if hasattr(own, "policy"):
            pairs.append(([own.policy], [found.policy]))
        if isinstance(own, OwnModelled):
            pairs.append(([own.encoder], [found.encoder]))  # type: ignore[attr-defined]
        for mine, theirs in pairs:
            for a, b in zip(mine, theirs, strict=True):
                assert float((a.flat() - b.flat()).abs().max()) < bound
        before = alone(tensors, k, critics).critics[0].flat()
        moved = max(moved, float((found.critics[0].flat() - before).abs().max()))
        if method.critic.learning.target is None:
            continue
        slow = loop.updater.trainers["critic"].slow.networks[k * critics : (k + 1) * critics]
        for a, row in zip(own.slow, slow, strict=True):
            assert float((a.flat() - row).abs().max()) < bound
    assert moved > 1e-4
    if "errors" in states[0]:
        masses = loop.method.sampling.state["masses"].gather(1, batch.index)  # type: ignore[arg-type]
        wanted = torch.stack([s["errors"] for s in states]).clamp(min=1.0).pow(0.4)
        once = [[int((own == i).sum()) == 1 for i in own] for own in batch.index]  # type: ignore[union-attr]
        assert float((masses - wanted).abs()[torch.tensor(once)].max()) < 1e-4 and float(wanted.max()) > 1.01
    if "log" in states[0]:
        part = loop.updater.offering["temperature"]
        heat = loop.updater.offers(part, "temperature")["temperature"].tolist()
        assert heat == pytest.approx([float(s["log"].detach().exp()) for s in states], abs=bound)
        assert all(abs(math.log(h)) > 1e-4 for h in heat)
