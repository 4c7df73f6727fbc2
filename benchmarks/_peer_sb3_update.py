"""SB3's part of `ppo_update_vs_sb3.py`, run by `.venv-sb3`: `PPO.train` on a rollout and weights that etude wrote.

Its GAE runs on its own `RolloutBuffer`; only the permutation of the rows is given, so that minibatches agree.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from _control_cases import Control
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import Logger


def targets(policy: Any) -> dict[str, torch.Tensor]:
    """SB3's parameters by etude's names."""
    found = {"policy.log_std": policy.log_std} if hasattr(policy, "log_std") else {}
    heads = {"policy": policy.action_net, "critic": policy.value_net}
    bodies = {"policy": policy.mlp_extractor.policy_net, "critic": policy.mlp_extractor.value_net}
    for name, body in bodies.items():
        layers = [m for m in body if isinstance(m, torch.nn.Linear)]
        for where, layer in [*((f"body.layers.{i}", m) for i, m in enumerate(layers)), ("head", heads[name])]:
            found |= {f"{name}.{where}.weight": layer.weight, f"{name}.{where}.bias": layer.bias}
    return found


def as_etude(name: str, parameter: torch.Tensor) -> np.ndarray:
    """In etude's shape: weights are [inputs, outputs], everything else has one row."""
    value = parameter.detach().numpy()
    return value.T if name.endswith("weight") else value[None]


def fill(buffer: Any, batch: dict[str, np.ndarray], gamma: float) -> None:
    """The rollout as SB3 records one: what follows a cut is added to its reward."""
    done = batch["terminated"] | batch["truncated"]
    starts = np.concatenate([batch["starts"][None], done[:-1]])
    rewards = batch["rewards"] + gamma * batch["next_values"] * batch["truncated"]
    for t in range(len(rewards)):
        values, logp = torch.tensor(batch["values"][t]), torch.tensor(batch["behaviour_logp"][t])
        buffer.add(batch["observations"][t], batch["actions"][t], rewards[t], starts[t], values, logp)
    buffer.compute_returns_and_advantage(torch.tensor(batch["next_values"][-1]), done[-1])


def main() -> None:
    """Print the parameters' largest difference."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("case", help="JSON of a Control")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    case, data = Control(**json.loads(chosen.case)), np.load(chosen.file)
    model = PPO(env=make_vec_env(lambda: gym.make(case.task), case.environments), **case.sb3())
    model.set_logger(Logger(None, []))
    named = targets(model.policy)
    assert len(named) == len(list(model.policy.parameters()))
    with torch.no_grad():
        for name, parameter in named.items():
            value = torch.tensor(data[f"before.{name}"])
            parameter.copy_(value.T if name.endswith("weight") else value[0])
    batch = {k.removeprefix("batch."): data[k] for k in data.files if k.startswith("batch.")}
    fill(model.rollout_buffer, batch, case.gamma)
    moved = model.rollout_buffer.advantages - data["advantages"]
    rows = np.arange(case.rollout)
    place = (rows % case.environments) * case.steps + rows // case.environments  # time first -> environment first
    orders = iter(data["orders"])
    np.random.permutation = lambda count: place[next(orders)]
    model.train()
    assert next(orders, None) is None
    after = {name: as_etude(name, p) for name, p in targets(model.policy).items()}
    print(json.dumps({
        "parameters": max(float(np.abs(after[k] - data[f"after.{k}"]).max()) for k in after),
        "advantages": float(np.abs(moved).max()),
        "moved": max(float(np.abs(data[f"before.{k}"] - data[f"after.{k}"]).max()) for k in after),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
