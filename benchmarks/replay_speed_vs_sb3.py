"""DQN, TD3 and SAC, etude against Stable-Baselines3: environment steps per second of processor time, and their limit.

Both arms have one configuration (`_replay_cases.py`), one thread, logs and a checkpoint in every turn, and take their
turns in one run: some steps and updates of SB3, of etude with one seed, of etude with several at once. SB3 trains one
seed at a time, so its rate is the same for several. Stated with the limit (`_limits.py`): how far etude is from it, and
what the ratio to SB3 would be there.

    python benchmarks/replay_speed_vs_sb3.py [--cases sac-256 dqn] [--rounds 4] [--output FILE]

Cases that FILE has already are not measured again; delete it to begin anew.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import _limits
from _arms import Arm, machine, peer_python
from _replay_cases import SPEED, Replayed


def measured(case: Replayed, chosen: argparse.Namespace) -> dict[str, Any]:
    """One case: SB3, and etude with each number of seeds that it has a target for."""
    peer = Arm(peer_python("sb3"), "_peer_sb3_replay.py", case.name, threads=1)
    own = {n: Arm(sys.executable, "_own_replay.py", case.name, f"--seeds={n}", threads=1) for n in case.targets}
    return _limits.compare(case, chosen.rounds, "environment_steps", peer, own)


def about(chosen: argparse.Namespace) -> dict[str, Any]:
    """Where this is measured."""
    return machine("sb3", ["torch", "gymnasium"], ["stable_baselines3", "torch", "gymnasium"])


if __name__ == "__main__":
    _limits.main(__doc__, SPEED, about, measured)
