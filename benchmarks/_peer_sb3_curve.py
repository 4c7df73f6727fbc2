"""One run of SB3's PPO, by `.venv-sb3`: prints [environment steps, return] of every training episode as JSON."""

from __future__ import annotations

import argparse
import json

from _control_cases import CURVES


def main() -> None:
    """Train to the end of the budget."""
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=list(CURVES))
    parser.add_argument("seed", type=int)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.logger import Logger

    torch.set_num_threads(chosen.threads)
    case, found = CURVES[chosen.case], list[list[float]]()

    class Episodes(BaseCallback):
        def _on_step(self) -> bool:
            found.extend([self.num_timesteps, float(i["episode"]["r"])] for i in self.locals["infos"] if "episode" in i)
            return True

    model = PPO(env=make_vec_env(case.task, case.environments, seed=chosen.seed), seed=chosen.seed, **case.sb3())
    model.set_logger(Logger(None, []))
    model.learn(case.budget, callback=Episodes())
    print(json.dumps(found))


if __name__ == "__main__":
    main()
