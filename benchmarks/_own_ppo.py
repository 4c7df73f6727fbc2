"""etude's arm: some rollouts and updates of `ppo` for every line on standard input, one JSON line back.

It is a whole run as `etude train` makes it: a run folder with its logs, checkpoints, a population of members.
The clock runs from one rollout's beginning to another's, so logs and checkpoints are counted.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _control_cases import SPEED


class Paced:
    """A loop that waits for a line before each `every` steps and answers with what they took.

    Args:
        done: how many of `what` all members do in so many steps.
    """

    def __init__(self, loop: Any, every: int, done: int, what: str = "environment_steps") -> None:
        self.loop, self.every, self.done, self.what, self.count = loop, every, done, what, 0
        self.also = dict[str, float]()  # that every answer says

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loop, name)

    def step(self) -> Any:
        """One training step."""
        if self.count % self.every == 0:
            if self.count:
                self._answer()
            if not sys.stdin.readline():
                sys.exit(0)
            self.begun, self.used = time.perf_counter(), time.process_time()
            self.spent = {"seconds/experience": 0.0, "seconds/update": 0.0}
        self.count += 1
        report = self.loop.step()
        for name in self.spent:
            self.spent[name] += report.metrics[name]
        self.reached = report.metrics.get("return", float("nan"))
        return report

    def _answer(self) -> None:
        found = {
            "seconds": time.perf_counter() - self.begun, "processor": time.process_time() - self.used,
            self.what: self.done, "return": self.reached,
            **{k.removeprefix("seconds/"): v for k, v in self.spent.items()}, **self.also,
        }  # fmt: skip
        print(json.dumps(found), flush=True)


def main() -> None:
    """Train until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=list(SPEED))
    parser.add_argument("--task", help="instead of the case's")
    parser.add_argument("--backend", help="of an environment that has several")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    from etude.core.worlds import World
    from etude.runs.kinds import run_of
    from etude.runs.training import Options, compose_method, compose_task
    from etude.runtime.folder import RunFolder
    from etude.runtime.progress import Progress
    from etude.runtime.run import Run

    case = SPEED[chosen.case]
    task = compose_task(chosen.task or case.task, [f"task.backend={chosen.backend}"] if chosen.backend else [])
    method = compose_method("ppo", case.etude(), world=World.CONTROL)
    options = Options(steps=10_000_000, seeds=chosen.seeds, threads=chosen.threads, evaluate=0, quiet=True)
    kind = run_of(method)
    loop, steps = kind.build(method, task, options), kind.training_steps(method, options.steps or 1)
    with (
        tempfile.TemporaryDirectory() as scratch,
        RunFolder.create(Path(scratch) / "run", method.to_json(), {"seed": 0}) as folder,
    ):
        paced = Paced(loop, chosen.every, case.rollout * chosen.seeds * chosen.every)
        progress = Progress(steps, loop.headline, quiet=True)
        print("ready", flush=True)
        Run(folder, paced, steps, checkpoint_every=chosen.every, progress=progress).execute()


if __name__ == "__main__":
    main()
