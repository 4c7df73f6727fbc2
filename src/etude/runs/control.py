"""Runs of control: what fits, the population and the loop, what is played before and after."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.core.control import ControlTask
from etude.core.errors import ConfigError
from etude.core.fields import parse
from etude.core.method import Method
from etude.core.part import hints
from etude.core.stages import applied
from etude.policies.control.population import Member
from etude.runs.training import Options
from etude.runtime.sources import opened

if TYPE_CHECKING:
    from etude.evaluation.intervals import Interval
    from etude.loops.on_policy import OnPolicyLoop

SEEDS = 10
"""Members of a population where nothing else is said."""
READS = frozenset({"seeds", "population"})
EPISODES = 20
"""Most episodes of each member that are played before and after training; `etude evaluate` plays more."""
PROMISES = {
    None: "",
    True: " Each member equals its own run here, bit for bit.",
    False: " Each member equals its own run here to rounding, not bit for bit.",
}
"""What the probe at the start found."""


def measured(task: ControlTask) -> tuple[list[str], list[str]]:
    """Metrics and splits of an evaluation."""
    return ["return", "return/deterministic"], ["test"]


def curve(metric: str) -> tuple[str, str, str]:
    """The return of the episodes that were trained on, which is not what an evaluation measures."""
    return "return", "training return", "environment steps of each member"


def prepare(method: Method, task: ControlTask) -> None:
    """Make and end an environment, so that one that cannot be made is found before anything is written."""
    task.make([0], 1).close()


def steps(method: Method, task: ControlTask, options: Options) -> int:
    """Environment steps of each member; also refuses members that cannot be."""
    members(method, options)
    return options.steps or task.steps


def training_steps(method: Method, steps: int) -> int:
    """Rollouts that make at least this many environment steps of each member; a stage's are as many as its share."""
    size, begun = 0.0, 0.0
    for end, own in applied(method):
        rollout: Any = own.experience  # type: ignore[attr-defined]
        size, begun = size + (end - begun) * rollout.environments * rollout.steps, end
    return math.ceil(steps / size)


def members(method: Method, options: Options) -> list[Member]:
    """Every setting with every seed. Raises ConfigError for a field that is not there or not to be varied."""
    axes = [_axis(method, text) for text in options.population]
    if len({path for path, _ in axes}) < len(axes):
        raise ConfigError("--population names a field twice: give all its values at once, as in lr=1e-4,3e-4.")
    seeds = range(options.seed, options.seed + (options.seeds or SEEDS))
    settings = [
        dict(zip((p for p, _ in axes), values)) for values in itertools.product(*(values for _, values in axes))
    ]
    return [Member(seed, each) for each in settings for seed in seeds]


def _axis(method: Method, text: str) -> tuple[str, list[float]]:
    """'lr=1e-4,3e-4' as the path of the field and its values."""
    name, equals, values = text.partition("=")
    parts = method.parts()
    found = [f"{path}.{field}" for path, part in parts.items() for field in part.fields()]
    fitting = [f for f in found if f == name or f.endswith(f".{name}")]
    if not equals or not values or len(fitting) != 1:
        known = ", ".join(fitting or found)
        problem = "fits several fields" if len(fitting) > 1 else "is no FIELD=VALUE,VALUE,... of this method"
        raise ConfigError(f"--population {text!r} {problem}. Fields: {known}.")
    where, _, field = fitting[0].rpartition(".")
    hint = hints(type(parts[where]))[field]
    parsed = [parse(fitting[0], hint, v) for v in values.split(",")]
    if not all(isinstance(v, float) for v in parsed):
        raise ConfigError(
            f"{fitting[0]} cannot differ between the members of one run: only real numbers inside formulas can. "
            "Sizes and choices shape the work: compare runs instead (etude compare)."
        )
    return fitting[0], parsed


def build(method: Method, task: ControlTask, options: Options) -> OnPolicyLoop:
    """Population and loop; tries whether its members equal their own runs here."""
    from etude.loops.probe import members_are_exact

    loop = _loop(method, task, options)
    if loop.population.size > 1:
        loop.exact = members_are_exact(loop)
    return loop


def _loop(method: Method, task: ControlTask, options: Options) -> OnPolicyLoop:
    import torch

    from etude.loops.on_policy import OnPolicyLoop
    from etude.runtime.memory import keep_freed

    keep_freed()
    torch.set_num_threads(options.threads or 1)
    assert options.steps is not None
    return OnPolicyLoop(method, task, members(method, options), training_steps(method, options.steps))


def sentence(loop: OnPolicyLoop, method: Method, task: ControlTask) -> str:
    """Who is trained, and on what."""
    width, count = loop.parameters.values.shape[1], loop.population.size
    settings = len({m.label for m in loop.population.members})
    seeds = f"{count // settings} seeds" + (f" of {settings} settings" if settings > 1 else "")
    rollout: Any = method.experience
    return (
        f"{count} members ({seeds}) of {width:,} parameters each, {rollout.environments} environments of {task.id} "
        f"for each, {loop.steps} rollouts of {rollout.steps} steps.{PROMISES[loop.exact]}"
    )


def found_here(loop: OnPolicyLoop) -> dict[str, Any]:
    """`members`: whether each equals its own run, 'exact' or 'to rounding', as tried at the start."""
    return {} if loop.exact is None else {"members": "exact" if loop.exact else "to rounding"}


def looks(method: Method, task: ControlTask, options: Options) -> bool:
    """Always, if asked to."""
    return options.evaluate > 0


def look(
    loop: OnPolicyLoop, task: ControlTask, options: Options, when: str
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns of sampled and of likeliest actions, over members; by setting where there are several."""
    from etude.evaluation.control import play, summary
    from etude.runs.training import say

    episodes = min(options.evaluate, EPISODES)
    say(f"Playing {episodes} episodes of each member {when} training ...", options.quiet)
    entry: dict[str, Any] = {}
    for name, deterministic in {"return": False, "return/deterministic": True}.items():
        returns = play(loop, task, episodes, deterministic=deterministic)
        entry |= {k: found.to_json() for k, found in summary(name, returns, loop.population.members).items()}
    return {"test": entry}, []


def evaluate(
    checkpoint: Path, config: Mapping[str, Any], task: ControlTask, episodes: int, seed: int = 0,
    video: str | None = None, member: int = 0,
) -> dict[str, dict[str, Interval]]:  # fmt: skip
    """Play whole episodes with every member of a trained run.

    Args:
        checkpoint: the checkpoint's folder, in its run's folder.
        config: of the run.
        video: where to write an animated picture of `member`.

    Returns: {'test': {'return' or 'return/deterministic', by setting if several: Interval over members}}.
    """
    from etude.evaluation.control import play, summary

    loop = restore(checkpoint, config, task)
    if video is not None:
        from etude.evaluation.animation import animate
        from etude.runs.training import say

        total = animate(loop, task, Path(video), member, seed)
        say(f"{video}: an episode of member {member} with a return of {total:.1f}.")
    found: dict[str, Interval] = {}
    for name, deterministic in {"return": False, "return/deterministic": True}.items():
        returns = play(loop, task, episodes, deterministic=deterministic, purpose=f"evaluate {seed}")
        found |= summary(name, returns, loop.population.members)
    loop.close()
    return {"test": found}


def restore(checkpoint: Path, config: Mapping[str, Any], task: ControlTask) -> OnPolicyLoop:
    """The population of a checkpoint. Raises ConfigError if it was trained on other observations or actions."""
    method = Method.from_json(opened(checkpoint.parent.parent).method)
    known = {k: v for k, v in config.items() if k in {f.name for f in dataclasses.fields(Options)}}
    loop = _loop(method, task, Options(**{**known, "population": tuple(known["population"]), "sinks": ()}))
    try:
        loop.load_policy(checkpoint)
    except (KeyError, RuntimeError) as error:
        raise ConfigError(
            f"The policies in {checkpoint} do not fit {task.id}: its observations or actions are not those that they "
            f"were trained with ({str(error).splitlines()[0]})."
        ) from None
    return loop
