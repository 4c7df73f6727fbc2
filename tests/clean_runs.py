"""False alarms: every registered method trains without a fault, and nothing that etude checks may say otherwise.

    python tests/clean_runs.py [--runs 200] [--only NAME ...] [--out FILE]

Each composition is run in its smallest setting, as the tests have it, and then again in another size, dtype and seed,
until there are as many runs as asked: two steps, a checkpoint, and a third step by a new loop that goes on from it, so
that what is restored is checked too. What stops a run, and every warning, is told with the run that it came from; the
exit code is 1 if one was stopped. A sentence about rewards that did not differ is no false alarm where they did not.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import etude  # noqa: F401  # isort: skip  # before torch, so that reproducible kernels are asked for
import torch

from etude.core.kinds import ReplayMethod
from etude.core.population import Member
from etude.core.recipe import Recipe
from etude.core.worlds import World
from etude.loops.language import LanguageLoop
from etude.loops.off_policy import OffPolicyLoop
from etude.loops.on_policy import OnPolicyLoop
from etude.policies.language import LanguagePolicy
from etude.runtime.folder import RunFolder
from etude.runtime.progress import Progress
from etude.runtime.run import Run
from etude.runtime.stopping import Stopping
from etude.tasks.control.cartpole import cartpole
from etude.tasks.control.pendulum import pendulum
from log_toys import OFFLINE, ONWARD, in_boxes, logged_task, small_logged, small_onward
from methods import test_every_method as every
from replay_toys import REPLAY, acts_in_boxes, small

STEPS = 3
TOLD = ("no two completions of one problem had different rewards", "of the reward is inert")
"""Of rewards that a random model earns none of: true of the run, and no fault of its own."""


@dataclass(frozen=True)
class Setting:
    """A size, a dtype, a seed; what of it a kind of method has.

    Args:
        problems: of a step of language, more than the least.
        micro_tokens: of a micro-batch of language.
        seeds: of the members of a population in control.
        block: environment steps of a step from a replay, or updates from logs.
    """

    dtype: str
    seed: int
    problems: int = 0
    micro_tokens: int = 8192
    seeds: tuple[int, ...] = (3,)
    block: int = 12


SETTINGS = (
    Setting("float32", 6),
    Setting("bfloat16", 7, problems=1, micro_tokens=256, seeds=(11, 12), block=20),
    Setting("float32", 8, problems=3, micro_tokens=128, seeds=(21, 22, 23), block=30),
)


@cache
def scorer() -> str:
    """A reward model that has taken two steps, for methods that are rewarded by one."""
    loop = every.loop_for(every.get_method("reward-model").replace(problems=4))
    loop.step(), loop.step()
    folder = Path(tempfile.mkdtemp(prefix="scorer-"))
    loop.policy.save(folder)
    return str(folder)


@cache
def model(dtype: str) -> LanguagePolicy:
    """The shipped model."""
    return LanguagePolicy.load("tiny", device="cpu", dtype=dtype)


def language(method: Any, at: Setting) -> Any:
    """A loop of tokens."""
    task = every.task_of(method)
    return LanguageLoop(
        method, task, copy.deepcopy(model(at.dtype)), seed=at.seed, steps=STEPS, micro_tokens=at.micro_tokens
    )


def loop_of(name: str, method: Any, at: Setting, folder: Path) -> Any:
    """A loop of any kind, made anew with the same weights each time."""
    members = [Member(seed) for seed in at.seeds]
    if isinstance(method, ReplayMethod):
        if name in OFFLINE:
            task: Any = logged_task(folder / "logs", in_boxes(name))
            return OffPolicyLoop(small_logged(name), task, members, STEPS, at.block)
        if name in ONWARD:
            return OffPolicyLoop(small_onward(name), logged_task(folder / "logs"), members, STEPS, at.block)
        task = pendulum if acts_in_boxes(REPLAY[name]) else cartpole
        return OffPolicyLoop(small(REPLAY[name]), task, members, STEPS, at.block)
    method = every.small(every.complete(method, scorer()))
    if World.CONTROL in method.worlds:
        return OnPolicyLoop(method, every.task_of(method), members, STEPS)
    return language(method.replace(problems=method.problems + at.problems), at)


def run(make: Any, folder: Path) -> None:
    """Two steps, a checkpoint, and a third step that another loop goes on to."""
    for until in (STEPS - 1, STEPS):
        loop = make()
        opened = RunFolder.resume(folder) if folder.is_dir() else RunFolder.create(folder, {}, {"seed": 0})
        try:
            quiet = Progress(STEPS, loop.headline, quiet=True)
            Run(opened, loop, STEPS, stopping=Stopping(None, None, (), until), progress=quiet).execute()
        finally:
            opened.close()
            getattr(loop, "close", lambda: None)()


def heard(name: str, method: Any, at: Setting) -> tuple[str, list[str]]:
    """What ended the run, if anything did, and what was said."""
    with (
        tempfile.TemporaryDirectory() as place, warnings.catch_warnings(record=True) as told,
        contextlib.redirect_stdout(io.StringIO()),
    ):  # fmt: skip
        warnings.simplefilter("always")
        ended = ""
        try:
            run(partial(loop_of, name, method, at, Path(place)), Path(place) / "run")
        except Exception as error:  # whatever ends it is told
            ended = f"{type(error).__name__}: {error}"
    return ended, [str(w.message) for w in told]


def settings(only: list[str]) -> Iterator[tuple[str, Any, Setting]]:
    """Every composition in every setting."""
    for at in SETTINGS:
        for name, method in every.METHODS.items():
            if not isinstance(method, Recipe) and (not only or method.id in only):
                yield name, method, at


def main() -> None:
    """Run, and say what was alarmed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    done: list[dict[str, Any]] = []
    for name, method, at in settings(chosen.only):
        if len(done) == chosen.runs:
            break
        begun = time.process_time()
        ended, said = heard(name, method, at)
        here = [s for s in said if not any(part in s for part in TOLD)]
        done.append({"method": name, "setting": vars(at), "ended": ended, "said": here, "told": len(said) - len(here)})
        if ended or here:
            print(f"{name} {at}: {ended} {here}", flush=True)
        if chosen.out:
            chosen.out.write_text(json.dumps(done, indent=1) + "\n", encoding="utf-8")
        print(f"{len(done)} {name} {time.process_time() - begun:.1f} s", flush=True)
    stopped, said = sum(bool(x["ended"]) for x in done), sum(bool(x["said"]) for x in done)
    told = sum(bool(x["told"]) for x in done)
    print(f"{len(done)} clean runs: {stopped} stopped, {said} with a warning, {told} told of rewards that were equal.")
    raise SystemExit(bool(stopped))


if __name__ == "__main__":
    main()
