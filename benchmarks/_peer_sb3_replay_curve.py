"""One run of SB3's DQN, TD3 or SAC, by `.venv-sb3`: prints [environment steps, return] of every training episode."""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np
import torch
from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.noise import NormalActionNoise

ZOO: dict[str, tuple[Any, dict[str, Any]]] = {
    "dqn": (
        DQN,
        {
            "learning_rate": 2.3e-3, "batch_size": 64, "buffer_size": 100_000, "learning_starts": 1000, "gamma": 0.99,
            "target_update_interval": 10, "train_freq": 256, "gradient_steps": 128, "exploration_fraction": 0.16,
            "exploration_final_eps": 0.04, "policy_kwargs": {"net_arch": [256, 256]},
        },
    ),
    "sac": (SAC, {"learning_rate": 1e-3}),
    "sac-cheetah": (SAC, {"learning_starts": 10_000}),
    "td3": (
        TD3,
        {
            "gamma": 0.98, "buffer_size": 200_000, "learning_starts": 10_000, "train_freq": 1, "gradient_steps": 1,
            "learning_rate": 1e-3, "policy_kwargs": {"net_arch": [400, 300]},
            "action_noise": NormalActionNoise(np.zeros(1), 0.1 * np.ones(1)),
        },
    ),
}  # fmt: skip
"""rl-baselines3-zoo's settings (hyperparams/*.yml at 22e3ff2) for CartPole-v1, Pendulum-v1 and HalfCheetah."""


def main() -> None:
    """Train to the end of the budget."""
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=list(ZOO))
    parser.add_argument("task")
    parser.add_argument("budget", type=int)
    parser.add_argument("seed", type=int)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    found = list[list[float]]()

    class Episodes(BaseCallback):
        def _on_step(self) -> bool:
            found.extend([self.num_timesteps, float(i["episode"]["r"])] for i in self.locals["infos"] if "episode" in i)
            return True

    algorithm, settings = ZOO[chosen.case]
    environment = make_vec_env(chosen.task, 1, seed=chosen.seed)
    model = algorithm("MlpPolicy", environment, seed=chosen.seed, device="cpu", **settings)
    model.set_logger(Logger(None, []))
    model.learn(chosen.budget, callback=Episodes())
    print(json.dumps(found))


if __name__ == "__main__":
    main()
