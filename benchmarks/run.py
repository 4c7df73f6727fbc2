"""Every speed claim, measured here and now; `--foundation` measures those that have a target, on the small model.

Results go to `runs/benchmarks/*.json`; the exit status is 1 if a target was missed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
FOUNDATION = {
    "grpo-short": ["grpo_vs_trl.py", "--cases", "short-0.8M", "--ablation", "short-0.8M"],
    "grpo-long": ["grpo_vs_trl.py", "--cases", "long-0.8M", "--rounds", "3"],
    "scaling": ["scaling.py"],
    "ppo": ["ppo_vs_sb3.py", "--cases", "CartPole-64"],
    "ppo-update": ["ppo_update_vs_sb3.py"],
    "replay-checkpoints": ["replay_checkpoints.py"],
    "replay-speed": ["replay_speed_vs_sb3.py"],
}
COMPLETE = {
    **FOUNDATION,
    "grpo-sparse": ["grpo_vs_trl.py", "--cases", "short-sparse-0.8M"],
    "grpo-10M": ["grpo_vs_trl.py", "--cases", "short-10M", "long-10M", "--rounds", "3"],
    "ppo": ["ppo_vs_sb3.py"],
    "multi-turn": ["multi_turn_vs_trl.py"],
    "offline-speed": ["offline_speed_vs_d3rlpy.py"],
    "method-costs": ["method_costs.py", "--rounds", "7"],
    "grpo-long-ablation": ["grpo_vs_trl.py", "--cases", "long-0.8M", "--ablation", "long-0.8M", "--rounds", "3"],
}


def main() -> None:
    """Run the chosen benchmarks one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--foundation", action="store_true", help="the targets only, on the small model")
    parser.add_argument("--output", type=Path, default=HERE.parent / "runs" / "benchmarks")
    chosen = parser.parse_args()
    chosen.output.mkdir(parents=True, exist_ok=True)
    missed = []
    for name, (script, *arguments) in (FOUNDATION if chosen.foundation else COMPLETE).items():
        file = chosen.output / f"{name}.json"
        print(f"== {name}", flush=True)
        command = [sys.executable, str(HERE / script), *arguments, "--output", str(file)]
        if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
            missed.append(name)
        print(f"   {file}", flush=True)
    if missed:
        sys.exit(f"Failed, or below target: {', '.join(missed)}.")


if __name__ == "__main__":
    main()
