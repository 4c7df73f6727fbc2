"""What samplers on a Ray cluster cost and bring: from one to two of them, and weights on their way to one.

Samplers: the same rows by one and by two, in turn, while the learner only waits; answers of at most 64 tokens of a
random Llama, each sampler one thread. The efficiency is how much faster two are, over two. Weights: milliseconds from
tensors here until another process has them in place, their marks compared: a file in memory (`--on processes`), Ray's
store of objects (`--on ray`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROBLEMS, TOKENS = 128, 64
SIZES = {"0.5M": (2, 500_000), "50M": (12, 50_000_000), "500M": (24, 500_000_000)}
"""How many tensors, and how many numbers all of them have."""


class Holder:
    """A role that only takes weights."""

    def __init__(self, size: str) -> None:
        import torch

        torch.set_num_threads(1)
        self.held = tensors(size)

    def take(self, file: str, mark: str) -> dict[str, str]:
        """As a sampler does."""
        from safetensors.torch import load_file

        from etude.policies import snapshots

        theirs = load_file(file)
        found = {name: theirs[name] for name in self.held}
        assert snapshots.mark(found) == mark
        for name, tensor in self.held.items():
            tensor.copy_(found[name])
        return {"mark": mark}

    def ready(self) -> str:
        """That it is there."""
        return "yes"


def tensors(size: str) -> dict[str, Any]:
    """Weights of so many numbers."""
    import torch

    count, total = SIZES[size]
    return {f"layer-{i}": torch.zeros(total // count) for i in range(count)}


def holder(size: str) -> Holder:
    """A role whose methods say how they are dispatched; this file is loaded by its path."""
    return Holder(size)


def _declare() -> None:
    from etude.runtime.executors.roles import Dispatch, dispatched

    for name in ("take", "ready"):
        dispatched(Dispatch.BROADCAST)(getattr(Holder, name))


@contextmanager
def executor(kind: str, role: type, make: str, arguments: dict[str, Any], ranks: int, name: str) -> Iterator[Any]:
    """One of that kind, started, and ended afterwards."""
    from etude.runtime.executors.processes import Processes
    from etude.runtime.executors.ray import Actors

    made = {"processes": Processes, "ray": Actors}[kind](role, make, arguments, ranks, name=name)
    try:
        made.start()
        yield made
    finally:
        made.close()


def transfer(kind: str, size: str, rounds: int) -> dict[str, float]:
    """Milliseconds until one other process has new weights."""
    from etude.policies import snapshots
    from etude.policies.snapshots import Snapshot
    from etude.runtime.executors.roles import Before

    _declare()
    mine, taken = tensors(size), list[float]()
    with executor(kind, Holder, f"{Path(__file__).resolve()}:holder", {"size": size}, 1, "Holder") as ranks:
        ranks.ask("ready")
        for number in range(rounds + 1):
            mine["layer-0"].fill_(float(number + 1))
            begun = time.perf_counter()
            snapshot = Snapshot(mine, number)
            given = {"file": str(snapshot.file), "mark": snapshot.mark}
            ranks.ask("ready", Before("take", snapshot.mark, lambda given=given: _now(given), ("file",)))  # type: ignore[misc]
            taken.append(1000 * (time.perf_counter() - begun))
            snapshot.close()
        begun = time.perf_counter()
        snapshots.mark(mine)
        marked = 1000 * (time.perf_counter() - begun)
        calls = [timed(lambda: ranks.ask("ready")) for _ in range(20)]
    told = taken[1:]
    return {
        "ms": round(statistics.median(told), 1), "least": round(min(told), 1), "most": round(max(told), 1),
        "of which one mark": round(marked, 1), "an empty call, ms": round(1000 * statistics.median(calls), 2),
    }  # fmt: skip


@contextmanager
def _now(given: dict[str, str]) -> Iterator[dict[str, str]]:
    yield given


def timed(call: Callable[[], object]) -> float:
    """Seconds of a call."""
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def efficiency(kind: str, rounds: int) -> dict[str, float]:
    """From one sampler to two, rows in turn."""
    import torch

    from etude.core.slots import Context
    from etude.core.streams import Stream
    from etude.experience.rollout import fresh
    from etude.experience.samplers import Sampler, Samplers
    from etude.policies.sampling import Sampling
    from etude.runs.samplers import load_policy, sampler_arguments
    from etude.runs.training import Options
    from etude.tasks import resolve_task

    torch.set_num_threads(1)
    task, options = resolve_task("compose"), Options(model="blank:2x64", device="cpu", threads=1)
    policy, how = load_policy(options), Sampling(max_tokens=TOKENS)
    starts = fresh(task.problems("train")[:PROBLEMS], 8, Stream(0))
    context = Context(task, policy, Stream(0), max_tokens=TOKENS)
    arguments, made = sampler_arguments(options, task), "etude.runs.samplers:sampler"
    found: dict[int, list[float]] = {1: [], 2: []}
    with executor(kind, Sampler, made, arguments, 2, "Sampler") as ranks:
        samplers, both = Samplers(ranks, task), ranks.ranks
        for _ in range(rounds + 1):
            for count in (1, 2):
                ranks.ranks = count
                found[count].append(timed(lambda: samplers.play(starts, context, how)))
        ranks.ranks = both
    one, two = (statistics.median(found[count][1:]) for count in (1, 2))
    pairs = [a / b / 2 for a, b in zip(found[1][1:], found[2][1:])]
    return {
        "rows": len(starts), "seconds of one": round(one, 2), "seconds of two": round(two, 2),
        "efficiency": round(statistics.median(pairs), 2), "least": round(min(pairs), 2), "most": round(max(pairs), 2),
    }  # fmt: skip


def main() -> None:
    """Print the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", nargs="*", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--kinds", nargs="*", default=["processes", "ray"])
    parser.add_argument("--without-samplers", action="store_true")
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    result: dict[str, Any] = {
        "weights": {size: {kind: transfer(kind, size, chosen.rounds) for kind in chosen.kinds} for size in chosen.sizes}
    }
    if not chosen.without_samplers:
        result["samplers"] = {kind: efficiency(kind, chosen.rounds) for kind in chosen.kinds}
    print(text := json.dumps(result, indent=1))
    if chosen.output:
        chosen.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
