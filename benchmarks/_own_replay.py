"""etude's arm: some environment steps and updates for every line on standard input, one JSON line back.

It is a whole run as `etude train` makes it: a run folder with its logs, a checkpoint in every turn (the stored rows
included), a population of members. The first answer, of a turn that warms up, also says what is computed in a step.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from _own_ppo import Paced
from _replay_cases import BLOCK, SPEED, Replayed


class Counted(Paced):
    """Counts the arithmetic of matrix products in the last training step of the first turn."""

    def step(self) -> Any:
        """One training step."""
        if self.count != self.every - 1:
            return super().step()
        from _operations import Operations

        with Operations() as counted:
            report = super().step()
        self.also["operations"] = counted.total / BLOCK
        return report


def built(case: Replayed, seeds: int, threads: int) -> tuple[Any, Any, int]:
    """A method in the case's settings, its loop as `etude train` makes it, and how many training steps there are."""
    from etude.core.worlds import World
    from etude.runs.kinds import run_of
    from etude.runs.training import Options, compose_method, compose_task

    task, method = compose_task(case.task), compose_method(case.method, case.etude(), world=World.CONTROL)
    options = Options(steps=10_000_000, seeds=seeds, threads=threads, evaluate=0, quiet=True)
    kind = run_of(method)
    return method, kind.build(method, task, options), kind.training_steps(method, options.steps or 1)


def main() -> None:
    """Train until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=list(SPEED))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    from etude.runtime.folder import RunFolder
    from etude.runtime.progress import Progress
    from etude.runtime.run import Run

    case = SPEED[chosen.case]
    method, loop, steps = built(case, chosen.seeds, chosen.threads)
    every = case.steps // BLOCK
    with (
        tempfile.TemporaryDirectory() as scratch,
        RunFolder.create(Path(scratch) / "run", method.to_json(), {"seed": 0}) as folder,
    ):
        paced = Counted(loop, every, case.steps * chosen.seeds)
        progress = Progress(steps, loop.headline, quiet=True)
        print("ready", flush=True)
        Run(folder, paced, steps, checkpoint_every=every, progress=progress).execute()


if __name__ == "__main__":
    main()
