"""etude's arm: some updates on logs for every line on standard input, one JSON line back.

It is a whole run as `etude train --data` makes it: a run folder with its logs, a checkpoint in every turn, a population
of members. With `--fixed` every update reads the rows of the first, so what is left out is what drawing them costs.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from _offline_cases import SPEED, Fitted
from _own_replay import Counted


class Once:
    """Draws when first asked, and says the same ever after."""

    def __init__(self, sampling: Any) -> None:
        self.draw_first, self.asked, self.rows = sampling.draw, 0, None

    def __call__(self, *given: Any, **also: Any) -> Any:
        self.asked += 1
        if self.rows is None:
            self.rows = self.draw_first(*given, **also)
        return self.rows


class Fixed(Counted):
    """Raises where updates draw their rows past the one draw that was put in."""

    def __init__(self, *given: Any, once: Once) -> None:
        super().__init__(*given)
        self.once = once

    def step(self) -> Any:
        """One training step."""
        report = super().step()
        if not self.once.asked:
            raise SystemExit("Nobody asked for the rows that were to be the same: this would time another thing.")
        return report


def composed(case: Fitted) -> Any:
    """The method in the case's sizes."""
    from etude.core.worlds import World
    from etude.runs.training import compose_method

    hidden, method = ",".join(map(str, case.width)), compose_method(case.method, [], world=World.CONTROL)
    sizes = [f"sampling.batch={case.batch}"]
    for part in ("policy", "critic", "value"):
        if getattr(method, part) is not None:
            sizes += [f"{part}.network.hidden={hidden}", f"{part}.network.products={case.products}"]
    return compose_method(case.method, sizes, world=World.CONTROL)


def main() -> None:
    """Train until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=list(SPEED))
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    from etude.runs.kinds import run_of
    from etude.runs.training import Options
    from etude.runtime.folder import RunFolder
    from etude.runtime.progress import Progress
    from etude.runtime.run import Run
    from etude.tasks.control.logged import LoggedTask

    case = SPEED[chosen.case]
    method, task = composed(case), LoggedTask(data=str(chosen.data))
    options = Options(steps=10_000_000, seeds=chosen.seeds, threads=chosen.threads, evaluate=0, quiet=True)
    kind = run_of(method)
    loop = kind.build(method, task, options)
    with (
        tempfile.TemporaryDirectory() as scratch,
        RunFolder.create(Path(scratch) / "run", method.to_json(), {"seed": 0}) as folder,
    ):
        every = max(1, case.updates // loop.block)
        given, once = (loop, every, every * loop.block * chosen.seeds, "updates"), Once(loop.method.sampling)
        if chosen.fixed:
            object.__setattr__(loop.method.sampling, "draw", once)
        paced = Fixed(*given, once=once) if chosen.fixed else Counted(*given)
        steps = kind.training_steps(method, options.steps or 1)
        print("ready", flush=True)
        Run(folder, paced, steps, checkpoint_every=every, progress=Progress(steps, loop.headline, quiet=True)).execute()


if __name__ == "__main__":
    main()
