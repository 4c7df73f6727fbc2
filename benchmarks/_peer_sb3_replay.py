"""SB3's arm, run by `.venv-sb3`: some steps and updates for every line on standard input, one JSON line back.

Its logger writes to a file and a `CheckpointCallback` saves the model (without what is stored) in every turn. The first
answer, of a turn that warms up, also says what is computed in a step.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time

from _replay_cases import BLOCK, SPEED


def main() -> None:
    """Train until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=list(SPEED))
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    import numpy as np
    import torch
    from _operations import Operations
    from stable_baselines3 import DQN, SAC, TD3
    from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.logger import configure
    from stable_baselines3.common.noise import NormalActionNoise

    torch.set_num_threads(chosen.threads)
    case = SPEED[chosen.case]

    class Clock(BaseCallback):
        count = 0
        operations = 0.0

        def _on_training_start(self) -> None:
            self._begin()

        def _begin(self) -> None:
            if not sys.stdin.readline():
                sys.exit(0)
            self.begun, self.used = time.perf_counter(), time.process_time()

        def _on_step(self) -> bool:
            self.count += 1
            if self.count == case.steps - BLOCK:
                self.counted = Operations()
                self.counted.__enter__()
            if self.count == case.steps:
                self.counted.__exit__(None, None, None)
                self.operations = self.counted.total / BLOCK
            if self.count % case.steps == 0:
                self._answer()
                self._begin()
            return True

        def _answer(self) -> None:
            returns = [e["r"] for e in self.model.ep_info_buffer or ()]
            found = {
                "seconds": time.perf_counter() - self.begun, "processor": time.process_time() - self.used,
                "environment_steps": case.steps, "return": sum(returns) / max(1, len(returns)),
                "operations": self.operations,
            }  # fmt: skip
            print(json.dumps(found), flush=True)

    environment = make_vec_env(case.task, 1, seed=0)
    settings = case.sb3()
    if case.method == "td3":
        settings["action_noise"] = NormalActionNoise(np.zeros(1), 0.1 * np.ones(1))
    with tempfile.TemporaryDirectory() as scratch:
        model = {"dqn": DQN, "td3": TD3, "sac": SAC}[case.method](env=environment, seed=0, **settings)
        model.set_logger(configure(scratch, ["json"]))
        saving = CheckpointCallback(save_freq=case.steps, save_path=scratch)
        print("ready", flush=True)
        model.learn(10_000_000, callback=[saving, Clock()])


if __name__ == "__main__":
    main()
