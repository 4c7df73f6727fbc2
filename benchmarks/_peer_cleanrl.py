"""Runs a script of CleanRL, as it is, in this process and prints its episodes as JSON; run by `.venv-cleanrl`.

The script is the user's own copy, outside of this project. Nothing in it is changed; for `ppo_continuous_action.py`
Gymnasium's wrappers that normalise observations and rewards and cut them do nothing here, so that it learns from what
the other libraries learn from.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import runpy
import sys
import tempfile
from typing import Any

from _control_cases import CURVES

EPISODE = re.compile(r"global_step=(\d+), episodic_return=\[?(-?[\d.e+]+)")


def main() -> None:
    """Run the script to its end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("script")
    parser.add_argument("case", choices=list(CURVES))
    parser.add_argument("seed", type=int)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    import gymnasium as gym
    import torch

    def same(env: Any, *_: Any, **__: Any) -> Any:
        return env

    for name in ("NormalizeObservation", "NormalizeReward", "TransformObservation", "TransformReward"):
        setattr(gym.wrappers, name, same)
    torch.set_num_threads(chosen.threads)
    sys.argv = [chosen.script, *CURVES[chosen.case].cleanrl(), "--seed", str(chosen.seed)]
    said = io.StringIO()
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)  # it writes its own logs to runs/
        with contextlib.redirect_stdout(said):
            runpy.run_path(chosen.script, run_name="__main__")
    print(json.dumps([[int(step), float(total)] for step, total in EPISODE.findall(said.getvalue())]))


if __name__ == "__main__":
    main()
