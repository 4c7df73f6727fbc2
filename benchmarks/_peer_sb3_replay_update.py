"""SB3's part of `replay_update_vs_sb3.py`, run by `.venv-sb3`: `train` on rows, weights and noise that etude wrote.

In the precision that they were written in.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from torch import nn

BATCH, RATE = 64, 1e-3
SHARED: dict[str, Any] = {"learning_rate": RATE, "batch_size": BATCH, "policy_kwargs": {"net_arch": [64, 64]}}


def model_of(name: str) -> Any:
    """SB3's algorithm in the settings of etude's composition."""
    if name == "dqn":
        return DQN("MlpPolicy", gym.make("CartPole-v1"), max_grad_norm=10.0, gamma=0.99, **SHARED)
    made = {"td3": TD3, "sac": SAC}[name]
    return made("MlpPolicy", gym.make("Pendulum-v1"), gamma=0.99, tau=0.005, **SHARED)


def layers(*modules: nn.Module) -> list[nn.Linear]:
    return [m for module in modules for m in module.modules() if isinstance(m, nn.Linear)]


def nets(name: str, model: Any) -> dict[str, list[list[nn.Linear]]]:
    """Linear layers by etude's names of networks: one list for each of a critic's networks."""
    if name == "dqn":
        return {"critic": [layers(model.q_net)], "slow.critic": [layers(model.q_net_target)]}
    found = {
        "critic": [layers(q) for q in model.critic.q_networks],
        "slow.critic": [layers(q) for q in model.critic_target.q_networks],
    }
    if name == "td3":
        return found | {"policy": [layers(model.actor.mu)], "slow.policy": [layers(model.actor_target.mu)]}
    return found | {"policy": [layers(model.actor.latent_pi, model.actor.mu, model.actor.log_std)]}


def tensors(data: Any, when: str, network: str) -> list[list[tuple[np.ndarray, np.ndarray]]]:
    """etude's weights [outputs, inputs] and biases, layer by layer, of each of a network's rows."""
    keys = [k for k in data.files if k.startswith(f"{when}.{network}/") and k.endswith("weight")]
    keys.sort(key=lambda k: ("head" in k.rsplit(".", 2)[1], k))
    rows = len(data[keys[0]])
    return [[(data[k][r].T, data[k.replace("weight", "bias")][r, 0]) for k in keys] for r in range(rows)]


def split_head(each: list[tuple[np.ndarray, np.ndarray]], count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """The last layer as SB3's SAC has it: one of means and one of deviations."""
    if len(each) == count:
        return each
    weight, bias = each[-1]
    half = len(weight) // 2
    return [*each[:-1], (weight[:half], bias[:half]), (weight[half:], bias[half:])]


def batches(data: Any) -> Iterator[ReplayBufferSamples]:
    update = 0
    while f"{update}.observations" in data.files:
        named = ("observations", "actions", "next", "done", "rewards")
        s, a, n, d, r = (torch.tensor(data[f"{update}.{k}"]) for k in named)
        a = a.long() if data[f"{update}.actions"].dtype == np.float32 and len(data["0.observations"][0]) == 4 else a
        yield ReplayBufferSamples(s, a, n, d.float()[:, None], r[:, None])
        update += 1


def feed_noise(name: str, data: Any) -> None:
    """etude's normal numbers wherever SB3 draws some."""
    order = ("smoothing",) if name == "td3" else ("policy here", "policy next")
    updates = range(sum(k.endswith(".rewards") for k in data.files))
    noise = (torch.tensor(data[f"{u}.{purpose}"]) for u in updates for purpose in order)
    if name == "td3":
        torch.Tensor.normal_ = lambda self, mean, std: self.copy_(next(noise) * std)  # type: ignore[method-assign]
    else:
        torch.distributions.normal._standard_normal = lambda shape, dtype, device: next(noise)


def main() -> None:
    """Print the parameters' largest difference."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("file")
    parser.add_argument("--epsilon", type=float, help="what SAC adds under the logarithm of its log-probabilities")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    data = np.load(chosen.file)
    if data["0.observations"].dtype == np.float64:
        torch.set_default_dtype(torch.float64)
        torch.Tensor.float = torch.Tensor.double  # type: ignore[assignment, method-assign]  # of what it reads
    model = model_of(chosen.name)
    if chosen.epsilon is not None:
        model.actor.action_dist.epsilon = chosen.epsilon
    model.set_logger(Logger(None, []))
    networks = nets(chosen.name, model)
    with torch.no_grad():
        for network, rows in networks.items():
            for own, each in zip(rows, tensors(data, "before", network), strict=True):
                for layer, (weight, bias) in zip(own, split_head(each, len(own)), strict=True):
                    layer.weight.copy_(torch.tensor(weight))
                    layer.bias.copy_(torch.tensor(bias))
    given = list(batches(data))
    waiting = iter(given)
    model.replay_buffer.sample = lambda size, env=None: next(waiting)
    feed_noise(chosen.name, data)
    model.train(gradient_steps=len(given), batch_size=BATCH)
    assert next(waiting, None) is None
    differences, moved = [], []
    for network, rows in networks.items():
        pairs = zip(rows, tensors(data, "after", network), tensors(data, "before", network), strict=True)
        for own, after, before in pairs:
            kept = zip(own, split_head(after, len(own)), split_head(before, len(own)), strict=True)
            for layer, (weight, bias), (was, _) in kept:
                differences.append(np.abs(layer.weight.detach().numpy() - weight).max())
                differences.append(np.abs(layer.bias.detach().numpy() - bias).max())
                moved.append(np.abs(weight - was).max())
    if chosen.name == "sac":
        log = data["after.temperature/temperature.numbers"].item()
        differences.append(abs(float(model.log_ent_coef.detach()) - log))
    print(json.dumps({"parameters": float(max(differences)), "moved": float(max(moved))}))


if __name__ == "__main__":
    main()
