"""PPO's configuration in each control benchmark, in terms of each library; needs none of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Control:
    """CleanRL's configuration of PPO, unless changed.

    Args:
        task: a Gymnasium id.
        value_clip: None for no clipping of the value's step. With clipping SB3 computes another loss (the clipped
            error alone), so nothing but speed is compared there.
        budget: environment steps after which an annealed learning rate is 0.
    """

    name: str
    task: str = "CartPole-v1"
    width: int = 64
    environments: int = 4
    steps: int = 128
    minibatches: int = 4
    epochs: int = 4
    lr: float = 2.5e-4
    anneal: bool = True
    gamma: float = 0.99
    lam: float = 0.95
    clip: float = 0.2
    value_clip: float | None = 0.2
    entropy: float = 0.01
    value: float = 0.5
    norm: float = 0.5
    epsilon: float = 1e-5
    budget: int = 500_000

    @property
    def rollout(self) -> int:
        """Environment steps between two updates."""
        return self.environments * self.steps

    @property
    def minibatch(self) -> int:
        """Rows of one optimizer step."""
        return self.rollout // self.minibatches

    def to_json(self) -> dict[str, Any]:
        """All of it, for the report."""
        return asdict(self)

    def etude(self) -> list[str]:
        """What to set on etude's `ppo`, as on the command line."""
        hidden = f"{self.width},{self.width}"
        fields = {
            "experience.environments": self.environments, "experience.steps": self.steps,
            "policy.network.hidden": hidden, "critic.network.hidden": hidden,
            "advantages.gamma": self.gamma, "advantages.lam": self.lam, "advantages.per_minibatch": True,
            "objective.low": self.clip, "objective.high": self.clip,
            "critic.coefficient": self.value, "critic.clip": self.value_clip,
            "regularizers.entropy-bonus.coefficient": self.entropy,
            "optimizer.lr": self.lr, "optimizer.epsilon": self.epsilon, "optimizer.clip_norm": self.norm,
            "optimizer.schedule": "linear" if self.anneal else "constant",
            "epochs": self.epochs, "minibatches": self.minibatches,
        }  # fmt: skip
        return [f"{k}={v}" for k, v in fields.items()]

    def sb3(self) -> dict[str, Any]:
        """Arguments of SB3's PPO. It has no factor 1/2 in the value's loss, and takes the rate after the rollout."""
        shift = self.rollout / (-(-self.budget // self.rollout) * self.rollout)
        rate = (lambda left: self.lr * (left + shift)) if self.anneal else self.lr
        return {
            "policy": "MlpPolicy", "learning_rate": rate, "n_steps": self.steps, "batch_size": self.minibatch,
            "n_epochs": self.epochs, "gamma": self.gamma, "gae_lambda": self.lam, "clip_range": self.clip,
            "clip_range_vf": self.value_clip, "ent_coef": self.entropy, "vf_coef": self.value / 2,
            "max_grad_norm": self.norm, "device": "cpu",
            "policy_kwargs": {"net_arch": [self.width, self.width], "optimizer_kwargs": {"eps": self.epsilon}},
        }  # fmt: skip

    def cleanrl(self) -> list[str]:
        """Flags of CleanRL's scripts, whose networks are 64 wide."""
        assert self.width == 64
        switches = {"anneal-lr": self.anneal, "clip-vloss": self.value_clip is not None}
        fields = {
            "env-id": self.task, "total-timesteps": self.budget, "learning-rate": self.lr,
            "num-envs": self.environments, "num-steps": self.steps, "gamma": self.gamma, "gae-lambda": self.lam,
            "num-minibatches": self.minibatches, "update-epochs": self.epochs, "clip-coef": self.clip,
            "ent-coef": self.entropy, "vf-coef": self.value, "max-grad-norm": self.norm,
        }  # fmt: skip
        chosen = [f"--{'' if on else 'no-'}{name}" for name, on in switches.items()]
        return [*(x for k, v in fields.items() for x in (f"--{k}", str(v))), *chosen, "--no-cuda"]


SPEED = {
    c.name: c
    for c in (
        Control("CartPole-64"),
        Control("CartPole-256", width=256),
        Control("Pendulum-64", task="Pendulum-v1", entropy=0.0),
        Control("Pendulum-256", task="Pendulum-v1", entropy=0.0, width=256),
    )
}

CURVES = {
    "CartPole-v1": Control("CartPole", value_clip=None, budget=390 * 512),
    "CartPole-v1, values clipped": Control("CartPole-clipped", budget=390 * 512),
    "Pendulum-v1": Control(
        "Pendulum", task="Pendulum-v1", steps=1024, minibatches=16, epochs=10, lr=1e-3, anneal=False, gamma=0.9,
        value_clip=None, entropy=0.0, budget=49 * 4096,
    ),
}  # fmt: skip
"""What is trained to its end: CleanRL's configuration for CartPole, SB3 zoo's without gSDE for Pendulum."""
