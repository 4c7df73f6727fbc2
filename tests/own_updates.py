"""Updates of one member written with torch's own layers and optimizers: what tests of methods on logs share."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

BODY = ("body.layers.0", "body.layers.1", "head")
VAE = tuple(
    (f"{half}.layers.0", f"{half}.layers.1", last) for half, last in (("encoder", "moments"), ("decoder", "last"))
)


def net(tensors: dict[str, Tensor], name: str, row: int, keys: tuple[str, ...] = BODY) -> nn.Sequential:
    """Two hidden layers with rectifiers, of one network among the rows [P M, ...] of a checkpoint."""
    layers: list[nn.Module] = []
    for key in keys:
        weight, bias = tensors[f"{name}.{key}.weight"][row], tensors[f"{name}.{key}.bias"][row, 0]
        layer = nn.Linear(*weight.shape)
        layer.weight.data, layer.bias.data = weight.T.clone(), bias.clone()
        layers.append(layer)
        if (norm := key.replace("layers", "norms")) != key and f"{name}.{norm}.scale" in tensors:
            scale = nn.LayerNorm(weight.shape[1])
            scale.weight.data = tensors[f"{name}.{norm}.scale"][row, 0].clone()
            scale.bias.data = tensors[f"{name}.{norm}.shift"][row, 0].clone()
            layers.append(scale)
        layers.append(nn.ReLU())
    return nn.Sequential(*layers[:-1])


def flat(network: nn.Module) -> Tensor:
    return torch.cat([(p.T if p.dim() == 2 else p).detach().reshape(-1) for p in network.parameters()])


class Learner:
    """Networks with one Adam over all of them."""

    def __init__(self, lr: float, *networks: nn.Module, free: tuple[nn.Parameter, ...] = ()) -> None:
        self.networks, self.losses = networks, list[float]()
        self.adam = torch.optim.Adam([*free, *(p for n in networks for p in n.parameters())], lr)

    def step(self, loss: Tensor) -> None:
        self.adam.zero_grad()
        loss.backward()
        self.adam.step()
        self.losses.append(loss.item())


class Own:
    """One member, from the weights before any update; a learner for each name of `order`.

    Args:
        count: of its critics. lr: of all. policy_lr: of the policy, and of the temperature.
    """

    def __init__(
        self, tensors: dict[str, Tensor], k: int, count: int = 2, lr: float = 3e-4, policy_lr: float = 3e-4
    ) -> None:
        self.policy = net(tensors, "policy", k)
        self.log_std = nn.Parameter(tensors["policy.log_std"][k, 0].clone()) if "policy.log_std" in tensors else None
        self.slow_log_std = None if self.log_std is None else self.log_std.detach().clone()
        free = () if self.log_std is None else (self.log_std,)
        self.learners = {"policy": Learner(policy_lr, self.policy, free=free)}
        if "critic.head.weight" in tensors:
            self.critics = [net(tensors, "critic", count * k + i) for i in range(count)]
            self.slow, self.slow_policy = copy.deepcopy(self.critics), copy.deepcopy(self.policy)
            self.learners["critic"] = Learner(lr, *self.critics)
        if "value.head.weight" in tensors:
            self.value = net(tensors, "value", k)
            self.learners["value"] = Learner(lr, self.value)
        if "action-vae.last.weight" in tensors:
            self.encoder, self.decoder = (net(tensors, "action-vae", k, keys) for keys in VAE)
            self.learners["action-vae"] = Learner(1e-3, self.encoder, self.decoder)
        if "guiding-network.head.weight" in tensors:
            self.guide = net(tensors, "guiding-network", k, ("body.layers.0", "body.layers.1", "head"))
            self.learners["guiding-network"] = Learner(1e-3, self.guide)
        if "temperature.numbers" in tensors:
            self.log_alpha = nn.Parameter(tensors["temperature.numbers"][k, 0].clone())
            self.learners["temperature"] = Learner(policy_lr, free=(self.log_alpha,))


def q(critic: nn.Module, s: Tensor, a: Tensor) -> Tensor:
    found: Tensor = critic(torch.cat([s, a], -1))[..., 0]
    return found


def follow(slow: list[nn.Module], fast: list[nn.Module]) -> None:
    with torch.no_grad():
        for old, new in zip(slow, fast, strict=True):
            for x, y in zip(old.parameters(), new.parameters(), strict=True):
                x.copy_(0.995 * x + 0.005 * y)
