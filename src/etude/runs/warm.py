"""Beginning a run with what another one learned: where it is found, and how members of a population take it.

A run begins with another's policy (`--model RUN`), or goes on from where it ended, with all of its state, in a folder
of its own (`--after RUN`).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.core.errors import CheckpointError, ConfigError, EtudeError
from etude.core.method import Method
from etude.core.worlds import World
from etude.runs.training import Options

if TYPE_CHECKING:
    from torch import Tensor

POLICY, CRITIC = "policy.", "critic."


def start_of(name: str, world: World) -> tuple[str, list[str]]:
    """What a run is started from, given a run (its newest checkpoint that is whole), a checkpoint, or another model.

    Returns: a model's folder or name, in control a checkpoint; and sentences about checkpoints that are damaged.

    Raises: ConfigError for a run of another world; CheckpointError if no checkpoint is whole.
    """
    from etude.policies.loading import named
    from etude.runtime import checkpoints

    if (frozen := named(name)) != name:
        found, notes = start_of(frozen, world)
        return name.removesuffix(frozen) + found, notes
    path, notes = Path(name), list[str]()
    if (path / "checkpoints").is_dir():
        path, notes = checkpoints.newest(path / "checkpoints", stored=False)
    model, policy = (path / "model").is_dir(), (path / "policy.safetensors").is_file()
    if world == World.CONTROL and not policy:
        raise ConfigError(
            f"{name} is no run of control, nor a checkpoint in one: in control --model names a run to begin with."
        )
    if world == World.CONTROL:
        return str(path), notes
    if policy and not model:
        raise ConfigError(f"{name} is a run of control, and a language model cannot begin with it.")
    return str(path / "model") if model else name, notes


def take_over(loop: Any, checkpoint: Path) -> list[str]:
    """Give a population that begins the policies of a checkpoint, normalisers included; the critic too if it fits.

    Member k takes member k's, or all of them the only one's. Optimizers, learners and what parts count begin anew.

    Returns: a sentence about a critic that begins anew.

    Raises: ConfigError, naming the tensor, unless every tensor of the policy is there in the same shape.
    """
    from etude.runtime.checkpoints import load_tensors

    if not hasattr(loop, "take"):
        raise ConfigError(f"{type(loop).__name__} cannot begin with another run's policy: leave out --model.")
    saved, own = load_tensors(checkpoint / "policy.safetensors"), loop.policy_tensors()
    _check_members(saved, own, checkpoint)
    policy = [k for k in {**own, **saved} if k.startswith(POLICY)]
    if found := next((f for k in policy if (f := _differs(k, saved, own))), None):
        raise ConfigError(
            f"The policies in {checkpoint} cannot begin this run: {found}. Train the same policy on a task with the "
            "same observations and actions."
        )
    critic = [k for k in {**own, **saved} if k.startswith(CRITIC)]
    fits = not any(_differs(k, saved, own) for k in critic)
    taken = [*policy, *(critic if fits else ())]
    loop.take({**own, **{k: saved[k].expand_as(own[k]) for k in taken}})
    return [] if fits else [f"The critic begins anew: {_first(critic, saved, own)}."]


def _check_members(saved: Mapping[str, Tensor], own: Mapping[str, Tensor], checkpoint: Path) -> None:
    there, here = (len(next(v for k, v in tensors.items() if k.startswith(POLICY))) for tensors in (saved, own))
    if there not in (1, here):
        raise ConfigError(
            f"{checkpoint} has {there} members and this run has {here}: give --seeds {there}, or begin with a run of "
            "one member, whose policy all of them take."
        )


def _differs(name: str, saved: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> str:
    """How a tensor of one member is another there than here, in words; empty if it is not."""
    if name not in saved or name not in own:
        return f"{name} is only {'here' if name in own else 'there'}"
    there, here = tuple(saved[name].shape[1:]), tuple(own[name].shape[1:])
    return "" if there == here else f"{name} is {list(there)} there and {list(here)} here"


def _first(names: Iterable[str], saved: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> str:
    return next(filter(None, (_differs(name, saved, own) for name in names)))


# Going on

TAKEN = ("model", "adapter", "dtype", "seed", "seeds", "population")
"""Options that a run has of the one after which it goes on."""


def after(options: Options, method: Method) -> Options:
    """The options of a run that goes on after another, with what it has of that one.

    Raises: ConfigError if the other is no run, has another method in what goes on, or is as long as this is to be.
    """
    from etude.runs.kinds import run_of

    run = Path(str(options.after))
    before, config = _method_of(run), _read(run, "config.json")
    if sentence := next(unlike(method, before, options.anew), None):
        raise ConfigError(f"{method.id} cannot go on after {run}: {sentence}")
    usual = {f.name: f.default for f in dataclasses.fields(Options)}
    theirs: dict[str, Any] = {k: tuple(v) if isinstance(v := config.get(k, usual[k]), list) else v for k in TAKEN}
    taken = dataclasses.replace(options, **theirs)
    for name in TAKEN:
        if getattr(options, name) not in (usual[name], getattr(taken, name)):
            raise ConfigError(f"A run after {run} has its {name}: leave out --{name}.")
    if options.steps is None or run_of(method).training_steps(method, options.steps) <= _checkpoint(run)[1]:
        raise ConfigError(
            f"{run} has {config['steps']} steps, and this run goes on from there: say with --steps up to which step, "
            "counted from its first."
        )
    return taken


def go_on(loop: Any, options: Options) -> list[str]:
    """Put a loop that begins where the run ended that it goes on after; returns sentences about damaged checkpoints.

    Raises: CheckpointError if what that run saved does not fit.
    """
    checkpoint, _, notes = _checkpoint(Path(str(options.after)))
    try:
        loop.load(checkpoint)
    except EtudeError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"What {options.after} saved does not fit this run ({type(error).__name__}: {error}): begin with its "
            "policy alone (--model)."
        ) from error
    if options.anew:
        loop.begin_anew(options.anew)
    return notes


def unlike(method: Method, before: Method, anew: Collection[str]) -> Iterator[str]:
    """Why a run of a method cannot go on after one of another, but for what begins anew, as sentences."""
    if type(method) is not type(before):
        yield f"it is a {type(method).__name__}, and {before.id} was a {type(before).__name__}."
        return
    now, then = method.slots(), before.slots()
    for name in anew:
        if name not in now:
            yield f"a {type(method).__name__} has no {name} that could begin anew by itself."
    if "optimizer" in now and "optimizer" not in anew and now["optimizer"] != then["optimizer"]:
        yield "its optimizer is another, and would go on: let it begin anew (--anew optimizer)."
    for slot in ({"stages", "critic", *method.stays} - {"optimizer", "reference"}) & set(now):
        if now[slot] != then[slot]:
            yield f"its {slot} would go on, and what fills that slot is another: begin with the policy alone (--model)."
    counting, counted = _counting(method), _counting(before)
    for path in {**counted, **counting}:
        if counting.get(path) != counted.get(path):
            yield f"{path} keeps count of what happened, and is another part: begin with the policy alone (--model)."


def _counting(method: Method) -> dict[str, Any]:
    """The parts that have a state, by path."""
    bound = method.bind().parts()
    return {path: part for path, part in method.parts().items() if path in bound and bound[path].state}


def _method_of(run: Path) -> Method:
    return Method.from_json(_read(run, "method.json"))


def _read(run: Path, name: str) -> Any:
    try:
        return json.loads((run / name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ConfigError(f"{run} is no run that another could go on after: it has no {name}.") from None


def _checkpoint(run: Path) -> tuple[Path, int, list[str]]:
    """Its newest whole checkpoint, the step of that, and sentences about damaged ones."""
    from etude.runtime import checkpoints

    path, notes = checkpoints.newest(run / "checkpoints")
    return path, checkpoints.step_of(path), notes
