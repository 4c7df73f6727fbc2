"""SB3's arm, run by `.venv-sb3`: some rollouts and updates of PPO for every line on standard input, one JSON line back.

Its logger writes every iteration to a file and a `CheckpointCallback` saves the model as often as etude's run does.
The clock runs from one rollout's beginning to another's, so both are counted.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from typing import Any

from _control_cases import SPEED


def main() -> None:
    """Train until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=list(SPEED))
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.logger import configure

    torch.set_num_threads(chosen.threads)
    case = SPEED[chosen.case]

    class Clock(BaseCallback):
        count = 0

        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            if self.count % chosen.every == 0:
                if self.count:
                    self._answer()
                if not sys.stdin.readline():
                    sys.exit(0)
                self.begun, self.used, self.collecting = time.perf_counter(), time.process_time(), 0.0
            self.count += 1
            self.since = time.perf_counter()

        def _on_rollout_end(self) -> None:
            self.collecting += time.perf_counter() - self.since

        def _answer(self) -> None:
            seconds, used = time.perf_counter() - self.begun, time.process_time() - self.used
            returns = [e["r"] for e in self.model.ep_info_buffer or ()]
            found: dict[str, Any] = {
                "seconds": seconds, "processor": used, "environment_steps": case.rollout * chosen.every,
                "return": sum(returns) / max(1, len(returns)),
                "experience": self.collecting, "update": seconds - self.collecting,
            }  # fmt: skip
            print(json.dumps(found), flush=True)

    with tempfile.TemporaryDirectory() as scratch:
        model = PPO(env=make_vec_env(case.task, case.environments, seed=0), seed=0, **case.sb3())
        model.set_logger(configure(scratch, ["json"]))
        saving = CheckpointCallback(save_freq=chosen.every * case.steps, save_path=scratch)
        print("ready", flush=True)
        model.learn(10_000_000, callback=[saving, Clock()])


if __name__ == "__main__":
    main()
