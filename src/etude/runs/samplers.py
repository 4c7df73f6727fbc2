"""Where a run of language samples: in its own process, or in sampler processes (`--on`)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from etude.core.errors import ConfigError
from etude.core.method import Method
from etude.core.part import from_json
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
    """Raise ConfigError for samplers of a method that samples nothing, or of a task that no other process can make."""
    place = place_of(options.on)
    if place == Place("local"):
        return
    if place.executor == "hogwild":
        raise ConfigError(
            f"--on {options.on} is for methods of control that learn from each segment once (a3c, n-step-q), and "
            f"{method.id} is one of {task.world}: run --on processes."
        )
    if not any((experience := own.slots()["experience"]) and experience.samples for _, own in applied(method)):
        raise ConfigError(
            f"--on {options.on} is for methods that sample, and {method.id} learns from data: leave it out."
        )
    if place.executor == "processes":
        _made_from(task)


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
    if place == Place("local"):
        return None
    if place.executor == "local":
        return Samplers(Local(Sampler(task, policy), place.ranks), task)
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
