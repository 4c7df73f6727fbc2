"""Beginning a run with what another one learned: where it is found, and how members of a population take it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.core.errors import ConfigError
from etude.core.worlds import World

if TYPE_CHECKING:
    from torch import Tensor

POLICY, CRITIC = "policy.", "critic."


def start_of(name: str, world: World) -> tuple[str, list[str]]:
    """What a run is started from, given a run (its newest checkpoint that is whole), a checkpoint, or another model.

    Returns: a model's folder or name, in control a checkpoint; and sentences about checkpoints that are damaged.

    Raises: ConfigError for a run of another world; CheckpointError if no checkpoint is whole.
    """
    from etude.runtime import checkpoints

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
