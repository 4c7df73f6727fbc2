"""SB3's runs, by `.venv-sb3`: trains what each job asks for with SB3's own algorithms, and keeps policies on the way.

A job is a JSON file (`jobs.py`). Beside it come `step-N.npz`, the policy's weights under etude's names, and
`finished.json`. A job that is finished is left alone. The environments are etude's; all that learns is SB3's.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from etude.runs.training import compose_task

Job = dict[str, Any]


def main() -> None:
    """Do the jobs named on the command line, one after another."""
    torch.set_num_threads(1)
    for path in map(Path, sys.argv[1:]):
        if not (path.parent / "finished.json").is_file():
            begun, used = time.monotonic(), time.process_time()
            found = {"steps": train(json.loads(path.read_text()), path.parent)}
            found |= {"seconds": round(time.monotonic() - begun, 1), "processor": round(time.process_time() - used, 1)}
            (path.parent / "unfinished.json").write_text(json.dumps(found))
            (path.parent / "unfinished.json").replace(path.parent / "finished.json")
        print(path.parent, flush=True)


def train(job: Job, folder: Path) -> int:
    """One run; the environment steps that it took."""
    environment: Any = Environments(job)
    if job["normalize"]:
        environment = VecNormalize(environment, gamma=job["settings"]["gamma"])
    model = algorithm(job)("MlpPolicy", environment, seed=job["seed"], device="cpu", **arguments(job))
    model.set_logger(Logger(None, []))
    model.learn(job["steps"], callback=Keep(job, folder, environment))
    return int(model.num_timesteps)


def algorithm(job: Job) -> Any:
    """SB3's class."""
    if job["trainer"] == "TRPO":
        from sb3_contrib import TRPO

        return TRPO
    return {"A2C": A2C, "PPO": PPO}[job["trainer"]]


def arguments(job: Job) -> dict[str, Any]:
    """What the class is made with; a rate that falls to 0 is the one that etude has at the same step.

    SB3 asks for it after the rollout, etude before.
    """
    rate, rollout = job["lr"], job["environments"] * job["settings"]["n_steps"]
    shift = rollout / (-(-job["steps"] // rollout) * rollout)
    networks = {"net_arch": [64, 64], "optimizer_kwargs": {"eps": 1e-5}}
    falling = (lambda left: rate * (left + shift)) if job["anneal"] else rate
    return {"learning_rate": falling, "policy_kwargs": networks, **job["settings"]}


class Environments(VecEnv):
    """etude's environments of one seed as SB3 knows them."""

    def __init__(self, job: Job) -> None:
        task: Any = compose_task(job["task"], job["set"])
        self.made = task.make([job["seed"]], job["environments"])
        super().__init__(job["environments"], self.made.observation_space, self.made.action_space)

    def reset(self) -> np.ndarray:
        return np.asarray(self.made.reset()[0])

    def step_async(self, actions: np.ndarray) -> None:
        self.chosen = np.asarray(actions, np.float32).reshape(1, self.num_envs, -1)

    def step_wait(self) -> Any:
        step = self.made.step(self.chosen)
        done = (step.terminated | step.truncated)[0]
        infos: list[dict[str, Any]] = [{} for _ in done]
        for row, last in zip(np.flatnonzero(done), [] if step.final is None else step.final):
            infos[row] = {"terminal_observation": last, "TimeLimit.truncated": bool(step.truncated[0, row])}
        return step.observations[0], step.rewards[0], done, infos

    def close(self) -> None:
        self.made.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [None] * self.num_envs  # it draws no pictures

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError(attr_name)

    def env_method(self, method_name: str, *arguments: Any, indices: Any = None, **named: Any) -> list[Any]:
        raise NotImplementedError(method_name)

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs


class Keep(BaseCallback):
    """Keeps the policy before the first step, every so many steps, and after the last."""

    def __init__(self, job: Job, folder: Path, environment: Any) -> None:
        super().__init__()
        self.folder, self.environment, self.due = folder, environment, [*range(0, job["steps"], job["every"])]
        self.last = job["steps"]

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        while self.due and self.due[0] <= self.num_timesteps:
            self.keep(self.due.pop(0))

    def _on_training_end(self) -> None:
        self.keep(self.last)

    def keep(self, step: int) -> None:
        """Write the policy of this step."""
        np.savez(self.folder / f"step-{step}.npz", **policy(self.model.policy, self.environment))


def policy(own: Any, environment: Any) -> dict[str, np.ndarray]:
    """The actor's weights, and the observations' moments, under etude's names without the members' axis."""
    layers = [m for m in own.mlp_extractor.policy_net if isinstance(m, torch.nn.Linear)]
    found = {"log_std": own.log_std.detach().numpy()[None]} if hasattr(own, "log_std") else {}
    for name, layer in [*((f"body.layers.{i}", m) for i, m in enumerate(layers)), ("head", own.action_net)]:
        found |= {f"{name}.weight": layer.weight.detach().numpy().T, f"{name}.bias": layer.bias.detach().numpy()[None]}
    if isinstance(environment, VecNormalize):
        seen = environment.obs_rms
        moments = {"mean": seen.mean[None], "variance": seen.var[None], "count": np.array([[seen.count]])}
        found |= {f"transforms.0.moments.{k}": v for k, v in moments.items()}
    return {k: v.copy() for k, v in found.items()}


if __name__ == "__main__":
    main()
