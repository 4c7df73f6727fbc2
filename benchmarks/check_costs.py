"""What the checks that are always on cost: the share of a training step's processor time that is spent in them.

Every function that checks an invariant or watches for a fault is timed by the clock of the thread, what it calls
included and counted once; the rest of the step is left as it is. The median over steps, one thread.

    python benchmarks/check_costs.py [--steps 12]
"""

from __future__ import annotations

import argparse
import functools
import importlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import etude  # noqa: F401  # isort: skip  # before torch, so that reproducible kernels are asked for
import torch

from etude.core.edit import set_values
from etude.core.population import Member
from etude.core.registry import get_method
from etude.loops.language import LanguageLoop
from etude.loops.off_policy import OffPolicyLoop
from etude.loops.on_policy import OnPolicyLoop
from etude.policies.language import LanguagePolicy
from etude.tasks import resolve_task

CHECKS = (
    "etude.policies.weights:Weights.mark", "etude.loops.update:check_alike", "etude.loops.update:probed",
    "etude.loops.update:gap_sums", "etude.loops.update:compare",
    "etude.loops.weighing:Weighing.watch", "etude.loops.weighing:Weighing.check",
    "etude.loops.weighing:Weighing._compare", "etude.loops.learn:Trainer._check_references",
    "etude.loops.gather:Gatherer._check_tokens", "etude.policies.language:LanguagePolicy.check_sampler",
    "etude.core.rows:check_aligned", "etude.loops.differences:Differences.watch",
    "etude.loops.control_update:ControlUpdater.check_acting", "etude.loops.control_update:ControlUpdater._check_moved",
    "etude.loops.control_update:Minibatch._check", "etude.loops.control_update:fingerprint",
    "etude.loops.true_ends:TrueEnds.look", "etude.experience.beginnings:Beginnings.ended",
    "etude.loops.replay_update:ReplayUpdater.check_moved", "etude.loops.replay_update:ReplayUpdater.check_followed",
    "etude.loops.replay_watch:ReplayWatch.watch",
)  # fmt: skip
spent = {"now": 0.0, "deep": 0.0}


def timed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose time is added up unless it is called within another that is."""

    @functools.wraps(function)
    def called(*given: Any, **options: Any) -> Any:
        if spent["deep"]:
            return function(*given, **options)
        spent["deep"], begun = 1.0, time.thread_time()
        try:
            return function(*given, **options)
        finally:
            spent["now"] += time.thread_time() - begun
            spent["deep"] = 0.0

    return called


def found(place: str) -> tuple[Any, str, Callable[..., Any]]:
    """Who has a check, by what name, and the check. Raises AttributeError for one that is not there any more."""
    module, _, path = place.partition(":")
    owner: Any = importlib.import_module(module)
    *outer, name = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    return owner, name, getattr(owner, name)


def watch() -> None:
    """Put the clock around every check."""
    for owner, name, check in map(found, CHECKS):
        setattr(owner, name, timed(check))


def loops() -> dict[str, Any]:
    """A step of each kind, in the settings that a user gets who sets nothing."""
    compose: Any = resolve_task("compose")
    dqn = set_values(get_method("dqn"), {"experience.warmup": 250})
    sac = set_values(get_method("sac"), {"experience.warmup": 250, "experience.random": 250})
    pendulum: Any = resolve_task("pendulum")
    cartpole: Any = resolve_task("cartpole")
    return {
        "grpo, compose, tiny": LanguageLoop(
            get_method("grpo"), compose, LanguagePolicy.load("tiny", device="cpu"), seed=0, steps=1000
        ),
        "ppo, cart-pole": OnPolicyLoop(get_method("ppo", world="control"), cartpole, [Member(0)], 1000),
        "dqn, cart-pole": OffPolicyLoop(dqn, cartpole, [Member(0)], 1000),
        "sac, pendulum": OffPolicyLoop(sac, pendulum, [Member(0)], 1000),
    }


def main() -> None:
    """Measure, and print a line for each loop."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=12)
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    watch()
    for name, loop in loops().items():
        shares, whole = [], []
        for step in range(steps + 2):
            spent["now"], begun = 0.0, time.thread_time()
            loop.step()
            took = time.thread_time() - begun
            if step >= 2:
                shares.append(spent["now"] / took)
                whole.append(took)
        low, high = min(shares), max(shares)
        print(f"{name:<24}{100 * statistics.median(shares):5.2f} % of {1000 * statistics.median(whole):.0f} ms a step "
              f"({100 * low:.2f} to {100 * high:.2f} % over {steps} steps)", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
