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
from etude.runs.training import Options, options_of
from etude.runtime.executors.places import Place, place_of

if TYPE_CHECKING:
    from etude.experience.samplers import Sampler, Samplers
    from etude.policies.language import LanguagePolicy

READ = ("model", "device", "dtype", "adapter", "autocast", "gradient_checkpointing", "seed")
"""Options that decide how a policy is loaded."""


def check(method: Method, task: LanguageTask, options: Options) -> None:
    """Raise ConfigError for samplers of a method that samples nothing, or of a task that no other process can make.

    With a bound also for methods whose rows must be of the present policy.
    """
    place = place_of(options.on)
    if place == Place("local") and not options.bound:
        return
    if place.executor == "hogwild":
        raise ConfigError(
            f"--on {options.on} is for methods of control that learn from each segment once (a3c, n-step-q), and "
            f"{method.id} is one of {task.world}: run --on processes."
        )
    if not any((experience := own.slots()["experience"]) and experience.samples for _, own in applied(method)):
        flag = f"--on {options.on}" if place != Place("local") else f"--bound {options.bound}"
        raise ConfigError(f"{flag} is for methods that sample, and {method.id} learns from data: leave it out.")
    if any(names_of(complete_token(own), task) != (FIRST,) or own.slots()["roles"] for _, own in applied(method)):
        flag = f"--on {options.on}" if place != Place("local") else f"--bound {options.bound}"
        raise ConfigError(f"{flag} is for episodes of one player, and those of {method.id} on {task.id} have roles.")
    for why in older_rows(method) if options.bound else ():
        raise ConfigError(f"--bound {options.bound} lets rows be older than the policy that learns from them. {why}")
    if place.executor == "processes":
        _made_from(task)


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


def load_policy(options: Options) -> LanguagePolicy:
    """The policy of a run as it begins."""
    from etude.policies.language import LanguagePolicy

    return LanguagePolicy.load(
        options.model, device=options.device, dtype=options.dtype, adapter=options.adapter,
        gradient_checkpointing=options.gradient_checkpointing, autocast=options.autocast,
        stream=Stream(options.seed).split("adapter"),
    )  # fmt: skip


def samplers_of(options: Options, task: LanguageTask, policy: LanguagePolicy) -> Samplers | None:
    """Who plays the episodes of a run, started; None where its own process does, all at once."""
    from etude.experience.samplers import Sampler, Samplers
    from etude.runtime.executors.local import Local
    from etude.runtime.executors.processes import Processes

    place = place_of(options.on)
    if place == Place("local") and not options.bound:
        return None
    if place.executor == "local":
        apart = options.bound > 0  # the weights that sample are older than those that learn
        return Samplers(Local(Sampler(task, load_policy(options) if apart else policy), place.ranks, apart), task)
    executor = Processes(
        Sampler, "etude.runs.samplers:sampler", sampler_arguments(options, task), place.ranks, name="Sampler"
    )
    executor.start()
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
    return Sampler(made, load_policy(options_of(Options, options)))


def _made_from(task: LanguageTask) -> tuple[str, str]:
    from etude.experience.worlds import made_from

    return made_from(task, "Episodes of task {} are played in processes of their own", "run --on local")
