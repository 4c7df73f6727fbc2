"""DQN, TD3 and SAC in each benchmark of speed, in terms of each library; needs none of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

BLOCK = 250
"""Environment steps of a training step of etude's runs."""


@dataclass(frozen=True)
class Replayed:
    """What both libraries are given.

    Args:
        width: of the hidden layers, as in the command line.
        steps: of each member in one turn.
        targets: ratios to reach, by seeds at once.
    """

    name: str
    method: str
    task: str
    width: tuple[int, int]
    batch: int
    steps: int
    targets: dict[int, float]
    warmup: int = 256
    capacity: int = 100_000
    lr: float = 3e-4
    gamma: float = 0.99
    every: int = 1
    target_every: int = 1
    epsilon: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """All of it, for the report."""
        return asdict(self)

    def etude(self) -> list[str]:
        """What to set on etude's method, as on the command line."""
        hidden = ",".join(map(str, self.width))
        fields: dict[str, Any] = {
            "critic.network.hidden": hidden, "sampling.batch": self.batch, "sampling.horizon.gamma": self.gamma,
            "experience.capacity": self.capacity, "experience.random": self.warmup, "experience.warmup": self.warmup,
            "optimizer.lr": self.lr,
        }  # fmt: skip
        if self.method == "dqn":
            fields |= {
                "experience.every": self.every, "experience.updates": 1 / self.every,
                "critic.learning.target.every": self.target_every // self.every,
                "exploration.start": self.epsilon, "exploration.end": self.epsilon,
            }  # fmt: skip
        else:
            fields["policy.network.hidden"] = hidden
        return [f"{k}={v}" for k, v in fields.items()]

    def sb3(self) -> dict[str, Any]:
        """Arguments of SB3's algorithm."""
        found: dict[str, Any] = {
            "policy": "MlpPolicy", "learning_rate": self.lr, "buffer_size": self.capacity, "batch_size": self.batch,
            "learning_starts": self.warmup, "gamma": self.gamma, "device": "cpu",
            "policy_kwargs": {"net_arch": list(self.width)},
        }  # fmt: skip
        if self.method == "dqn":
            found |= {
                "train_freq": self.every, "target_update_interval": self.target_every,
                "exploration_initial_eps": self.epsilon, "exploration_final_eps": self.epsilon,
            }  # fmt: skip
        return found


SPEED = {
    c.name: c
    for c in (
        Replayed("sac-256", "sac", "Pendulum-v1", (256, 256), 256, 500, {1: 2.0}),
        Replayed("td3-256", "td3", "Pendulum-v1", (256, 256), 256, 500, {1: 2.0}),
        Replayed(
            "dqn", "dqn", "CartPole-v1", (120, 84), 128, 2_500, {1: 2.5, 10: 10.0}, capacity=10_000, lr=2.5e-4,
            every=10, target_every=500, epsilon=0.29,
        ),
        Replayed("sac-64", "sac", "Pendulum-v1", (64, 64), 64, 500, {10: 8.0}),
    )
}  # fmt: skip
"""`dqn` is CleanRL's (dqn.py), whose chance of any action falls from 1 to 0.05 in half a run: 0.29 is its mean."""
