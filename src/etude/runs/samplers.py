"""Where a run of language samples: in its own process, or in sampler processes (`--on`)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from etude.core.complete import complete_token
from etude.core.episodes import FIRST
from etude.core.errors import ConfigError
from etude.core.method import Method
from etude.core.part import from_json
from etude.core.players import names_of
from etude.core.stages import applied
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.runs import engines
from etude.runs.training import Options, options_of
from etude.runtime.executors import ray
from etude.runtime.executors.places import Place, place_of

if TYPE_CHECKING:
    from etude.experience.samplers import Sampler, Samplers
    from etude.policies.language import LanguagePolicy

READ = ("model", "device", "dtype", "adapter", "autocast", "gradient_checkpointing", "seed", "engine")
"""Options that decide how a policy is loaded, and who samples from it."""
ELSEWHERE = ("processes", "ray")
"""Executors whose samplers are processes of their own."""


def check(method: Method, task: LanguageTask, options: Options) -> None:
    """Raise ConfigError for samplers of a method that samples nothing, or of a task that no other process can make.

    With a bound also for methods whose rows must be of the present policy.
    """
    place, bound = place_of(options.on), bound_of(method, options)
    for why in renewed_rows(method, task, bound):
        raise ConfigError(why)
    if options.engine is not None:
        engines.check(method, options)
    if place == Place("local") and not bound and options.engine is None:
        return
    if place.executor == "hogwild":
        raise ConfigError(
            f"--on {options.on} is for methods of control that learn from each segment once (a3c, n-step-q), and "
            f"{method.id} is one of {task.world}: run --on processes."
        )
    flag = f"--on {options.on}" if place != Place("local") else f"--bound {bound}" if bound else "--engine"
    if not any((experience := own.slots()["experience"]) and experience.samples for _, own in applied(method)):
        raise ConfigError(f"{flag} is for methods that sample, and {method.id} learns from data: leave it out.")
    if any(names_of(complete_token(own), task) != (FIRST,) or own.slots()["roles"] for _, own in applied(method)):
        raise ConfigError(f"{flag} is for episodes of one player, and those of {method.id} on {task.id} have roles.")
    for why in older_rows(method) if bound else ():
        raise ConfigError(f"--bound {bound} lets rows be older than the policy that learns from them. {why}")
    if place.executor == "ray":
        ray.check(place.address)
    if place.executor in ELSEWHERE:
        _made_from(task)


def bound_of(method: Method, options: Options) -> int:
    """How many training steps old rows may be: as `--bound` says, else as the method does."""
    return int(getattr(method, "bound", 0)) if options.bound is None else options.bound


def older_rows(method: Method) -> Iterator[str]:
    """Why a method cannot learn from rows that weights of earlier steps sampled, as sentences."""
    from etude.loops.token_learning import own_needs

    for _, own in applied(method):
        slots = complete_token(own).slots()
        objective, experience, curriculum = slots["objective"], slots["experience"], slots["curriculum"]
        if not experience.samples:
            continue
        if objective.fresh_rows:
            yield (
                f"{type(objective).__name__} is right on rows of the present policy only, since nothing in it makes up "
                "for another that sampled: choose objective=decoupled-surrogate, or leave --bound at 0."
            )
        if experience.pauses or experience.initial_state():
            yield (
                f"{type(experience).__name__} goes on in a step with what it kept of the one before, which is not "
                "there yet where the next step begins earlier: choose experience=groups, or leave --bound at 0."
            )
        if experience.reads_policy:
            yield (
                f"{type(experience).__name__} asks the policy how likely tokens are that were said for it, and with a "
                "bound that policy has learned on since it sampled the others: choose experience=groups, or leave "
                "--bound at 0."
            )
        if not curriculum.chooses_ahead:
            yield (
                f"{type(curriculum).__name__} does not say (chooses_ahead) that it can choose for a step before it was "
                "told of the last one: choose another curriculum, or leave --bound at 0."
            )
        if "hidden" in own.needs("rewards", "filters", "advantages") | own_needs(own):
            yield "Parts need the states that rows were sampled from, and the policy has others by then."
    for part in method.slots().get("stages", ()):
        if part.chooser is not None:
            yield (
                f"{type(part.chooser).__name__} chooses the next step by what the last one came to: leave --bound at 0."
            )


def renewed_rows(method: Method, task: LanguageTask, bound: int) -> Iterator[str]:
    """Why completions cannot take newer weights on their way, as sentences."""
    from etude.experience.rollout import EVERYTHING

    own = [complete_token(stage) for _, stage in applied(method)]
    if not (after := max(stage.renew_after for stage in own)):
        return
    if bound < 2:
        yield (
            f"renew_after={after} lets completions go on with newer weights while an earlier step is learned from, and "
            f"with a bound of {bound} there is none between theirs and their own: give --bound 2 or more, or leave it "
            "at 0."
        )
    if task.max_turns > 1:
        yield (
            f"renew_after={after} is for tasks of one turn, and those of {task.id or type(task).__name__} may have "
            f"{task.max_turns}: leave it at 0."
        )
    if not all(getattr(stage.experience, "view", EVERYTHING).whole for stage in own):
        yield f"renew_after={after} is for policies that see all that they said: leave experience.view as it is."


def load_policy(options: Options) -> LanguagePolicy:
    """The policy of a run as it begins."""
    from etude.policies.language import LanguagePolicy

    return LanguagePolicy.load(
        options.model, device=options.device, dtype=options.dtype, adapter=options.adapter,
        gradient_checkpointing=options.gradient_checkpointing, autocast=options.autocast,
        stream=Stream(options.seed).split("adapter"),
    )  # fmt: skip


def samplers_of(method: Method, options: Options, task: LanguageTask, policy: LanguagePolicy) -> Samplers | None:
    """Who plays the episodes of a run, started; None where its own process does, all at once."""
    from etude.experience.samplers import Sampler, Samplers
    from etude.runtime.executors.local import Local
    from etude.runtime.executors.processes import Processes

    place, bound = place_of(options.on), bound_of(method, options)
    executor: Processes
    if place == Place("local") and not bound and options.engine is None:
        return None
    engine = None if options.engine is None else engines.agreeing(options.engine, policy)
    if place.executor == "local":
        apart = bound > 0  # the weights that sample are older than those that learn
        own = load_policy(options) if apart else policy
        return Samplers(Local(Sampler(task, own, engine), place.ranks, apart), task)
    made = "etude.runs.samplers:sampler"
    if place.executor == "ray":
        alike = dataclasses.replace(options, device=policy.device.type)  # whatever else a machine may have
        arguments = sampler_arguments(alike, task)
        needed = {"num_cpus": arguments["threads"], "num_gpus": int(policy.device.type == "cuda")}
        executor = ray.Actors(
            Sampler, made, arguments, place.ranks, name="Sampler", address=place.address, resources=needed
        )
    else:
        executor = Processes(Sampler, made, sampler_arguments(options, task), place.ranks, name="Sampler")
    try:
        executor.start()
    except BaseException:
        executor.close()
        raise
    return Samplers(executor, task)


def sampler_arguments(options: Options, task: LanguageTask) -> dict[str, Any]:
    """What `sampler` is called with in a process of its own, for the threads that are set now."""
    import torch

    name, fields = _made_from(task)
    told = dataclasses.asdict(options)
    return {
        "task": name, "fields": json.loads(fields), "options": {key: told[key] for key in READ},
        "threads": torch.get_num_threads(),
    }  # fmt: skip


def sampler(task: str, fields: Mapping[str, Any], options: Mapping[str, Any], threads: int) -> Sampler:
    """The sampler of a process of its own."""
    import torch

    from etude.core.registry import load_attribute
    from etude.experience.samplers import Sampler

    torch.set_num_threads(threads)
    made = load_attribute(task)(**{k: from_json(v) for k, v in fields.items()})
    assert isinstance(made, LanguageTask)
    told = options_of(Options, options)
    return Sampler(made, load_policy(told), None if told.engine is None else engines.connect(told.engine))


def _made_from(task: LanguageTask) -> tuple[str, str]:
    from etude.experience.worlds import made_from

    return made_from(task, "Episodes of task {} are played in processes of their own", "run --on local")
