"""Runs of control whose workers step on the same numbers (`--on hogwild:W`): who can, and how they are started."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from etude.core.control import ControlTask
from etude.core.errors import ConfigError
from etude.core.kinds import ReplayMethod, RolloutMethod
from etude.core.method import Method
from etude.core.part import from_json
from etude.core.population import Member
from etude.core.registry import load_attribute
from etude.core.replay_slots import ReplayLearner
from etude.core.streams import Stream
from etude.runs.training import Options
from etude.runtime.executors.places import place_of

if TYPE_CHECKING:
    from etude.loops.hogwild import Worker


def check(method: Method, task: ControlTask, options: Options) -> None:
    """Raise ConfigError for workers of what cannot be learned so, in a sentence."""
    place = place_of(options.on)
    if place.executor == "local":
        if place.ranks > 1:
            raise ConfigError(f"--on {options.on} is for methods that sample tokens: leave it out.")
        return
    if place.executor in ("processes", "ray"):
        raise ConfigError(
            f"--on {options.on} is for methods that sample tokens, and {method.id} is for control: run --on "
            f"hogwild:{place.ranks}, or leave it out."
        )
    for sentence in objections(method, options):
        raise ConfigError(f"--on {options.on} cannot train {method.id}: {sentence}")
    made_from(task)


def objections(method: Method, options: Options) -> Iterator[str]:
    """Why several workers cannot step on the numbers of this method."""
    from etude.runs.worlds.members import members

    count = len(members(method, options))
    if count != 1:
        yield f"its workers train one member together, and there are {count}: set --seeds 1, without --population."
    if options.device not in ("auto", "cpu"):
        yield "what the workers have in common is in the memory of the machine: leave --device out."
    if method.slots()["stages"]:
        yield "it has stages, and its workers would begin them at different times: leave stages out."
    optimizers: list[Any]
    if isinstance(method, ReplayMethod):
        if method.sampling is not None and not method.sampling.newest:
            yield "it learns from a replay, of which every worker would have one of its own: take n-step-q."
        if isinstance(method.critic, ReplayLearner) and method.critic.reads_windows:
            yield "its critic reads windows."
        optimizers = [part.learning.optimizer for part in method.trained.values() if part.learning]
    else:
        assert isinstance(method, RolloutMethod)
        if method.lagrangians:
            yield "it has Lagrange multipliers, which are kept above 0 by one process: leave them out."
        if method.learners or (method.critic is not None and not method.critic.joint):
            yield "it has learners that take steps of their own: leave them out, or set critic=state-value."
        optimizers = [method.optimizer] if method.optimizer else []
    for optimizer in optimizers:
        if not getattr(optimizer, "lock_free", False):
            yield f"{type(optimizer).__name__} steps alone on its numbers: set optimizer=rmsprop."
    policy = method.slots()["policy"]
    for part in (*getattr(policy, "observations", ()), *method.slots()["rewards"]):
        yield (
            f"{type(part).__name__} may go by what one worker sees, and the others see something else: leave it out "
            f"of {part.slot}."
        )


def made_from(task: ControlTask) -> tuple[str, str]:
    """'module:Class' of a task and its fields, from which workers make it."""
    from etude.experience.worlds import made_from

    return made_from(task, "Workers of task {} are processes of their own", "run without --on")


def seed_of(seed: int, rank: int) -> int:
    """Of a worker: the first has the run's own, so that one worker is the run without any."""
    return seed if rank == 0 else Stream(seed).split("hogwild", rank).key >> 33


def around(inner: Any, method: Method, task: Any, options: Options) -> Any:
    """The loop of one process, or that of workers around it, started, if they were asked for."""
    if place_of(options.on).executor != "hogwild":
        return inner
    import torch

    from etude.loops.hogwild import HogwildLoop, Worker, sizes_of
    from etude.runtime.common import Common
    from etude.runtime.executors.processes import Processes

    (name, fields), path = made_from(task), Common.create(sizes_of(inner))
    arguments = {
        "method": method.to_json(), "task": name, "fields": json.loads(fields), "seed": options.seed,
        "settings": dict(inner.population.members[0].settings), "steps": inner.steps, "path": path,
        "threads": torch.get_num_threads(),
    }  # fmt: skip
    ranks = place_of(options.on).ranks
    executor = Processes(
        Worker, "etude.runs.hogwild:worker", arguments, ranks, name="Worker", restarts=0,
        own=[{"rank": k} for k in range(ranks)],
    )  # fmt: skip
    executor.start()
    return HogwildLoop(inner, path, executor)


def end(loop: Any) -> None:
    """End the workers, if there are any; called again it does nothing."""
    if (shared := vars(loop).get("workers")) is not None:
        shared.close()
        loop.forget()


def promises(loop: Any) -> dict[str, Any]:
    """`repeats`: whether the same seed gives the same numbers again; with several workers it does not."""
    shared = vars(loop).get("workers")
    return {} if shared is None or shared.ranks == 1 else {"repeats": "not: several workers write without locks"}


def worker(
    method: Mapping[str, Any], task: str, fields: Mapping[str, Any], seed: int, settings: Mapping[str, float],
    steps: int, path: str, threads: int, rank: int,
) -> Worker:  # fmt: skip
    """The role in a process of its own."""
    import torch

    from etude.loops import loop_class
    from etude.loops.hogwild import Worker

    torch.set_num_threads(threads)
    made, own = load_attribute(task)(**{k: from_json(v) for k, v in fields.items()}), Method.from_json(method)
    build: Any = loop_class(type(own), made.world)
    return Worker(build(own, made, [Member(seed_of(seed, rank), settings)], steps), path, rank)
