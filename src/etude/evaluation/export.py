"""One member's policy as a plain `torch.export` program, which runs where etude is not installed.

    policy = torch.export.load("policy.pt2").module()
    action = policy(observations)

takes a batch of observations as the environment gives them and returns the likeliest actions as the environment takes
them. A policy that remembers (stacked frames, a memory) takes and returns what it remembers:

    action, state = policy(observations, begins, state)

with `begins` [N] true where the observation is the first of an episode; there the state given does not matter, so that
it can start as zeros. Their shapes without N and types are in the archive, under "state" of `policy.json`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from etude.core.errors import ConfigError
from etude.core.population import PerMember
from etude.experience.spaces import (
    MASK,
    action_size,
    batch_of,
    channels_last,
    in_bytes,
    is_image,
    leaf_values,
    leaves,
    observation_shape,
)  # fmt: skip
from etude.policies.control.actor import Actor, Player
from etude.policies.control.frames import FrameStack
from etude.policies.control.memory import Past

if TYPE_CHECKING:
    from etude.evaluation.restored import Acting

DESCRIPTION = "policy.json"
"""File inside the archive that says what goes in and comes out."""


class PlainPolicy(nn.Module):
    """Raw observations [N, ...] to actions [N, ...] of the environment, by a policy whose tensors are [1, ...].

    Args:
        frames: how many observations are stacked; 1 without `FrameStack`.
    """

    def __init__(self, actor: Actor, observations: spaces.Space[Any], actions: spaces.Space[Any], frames: int) -> None:
        super().__init__()
        self.actor, self.observations, self.actions, self.frames = actor, observations, actions, frames

    def initial(self, count: int) -> dict[str, Tensor]:
        """What a policy that remembers starts with: tensors of zeros; empty for one that does not."""
        tensors = {}
        if self.frames > 1:
            first, *rest = observation_shape(self.observations)
            dtype = torch.uint8 if in_bytes(self.observations) else torch.float32
            tensors["frames"] = torch.zeros(count, self.frames * first, *rest, dtype=dtype)
        if self.actor.memory is not None:
            tensors["memory"] = Player(self.actor, 1, count).memory[0]
        return tensors

    def forward(self, observations: Any, begins: Tensor | None = None, state: dict[str, Tensor] | None = None) -> Any:
        seen, past, kept = encode(self.observations, observations), None, {}
        if state is not None and "frames" in state:
            seen = kept["frames"] = self._stacked(seen, begins, state["frames"])
        if state is not None and "memory" in state:
            assert begins is not None
            past = Past(state["memory"][None], begins[None, None])
        shown = self.actor.see(seen[None])
        features, memory = self.actor.features(shown, past)
        said = self.actor.say(features, self.actor.allowed(seen[None]))
        if memory is not None:
            kept["memory"] = memory[0]
        action = decode(self.actions, self.actor.likeliest(shown, said)[0])
        return action if state is None else (action, kept)

    def _stacked(self, seen: Tensor, begins: Tensor | None, frames: Tensor) -> Tensor:
        assert begins is not None
        first = begins.view(-1, *[1] * (seen.dim() - 1))
        going = torch.cat([frames[:, seen.shape[1] :], seen], 1)
        return torch.where(first, torch.cat([seen] * self.frames, 1), going)


def export_policy(loop: Acting, member: int, path: Path | str) -> Path:
    """Write one member's policy, with all that belongs to it (normaliser, frames, memory).

    Args:
        loop: of a run (`loops/on_policy.py`), trained or restored from a checkpoint.
        member: index in the population.
        path: of the file, ending in '.pt2'.

    Raises: ConfigError for a member that is not there, or another ending.
    """
    path = Path(path)
    if path.suffix != ".pt2":
        raise ConfigError(f"An exported policy is a file whose name ends in .pt2, got {path.name!r}.")
    policy = plain_policy(loop, member)
    arguments = _example(policy)
    sizes = tree_map(lambda x: {0: torch.export.Dim.DYNAMIC}, arguments)
    program = torch.export.export(policy, tuple(arguments.values()), dynamic_shapes=sizes)
    path.parent.mkdir(parents=True, exist_ok=True)
    described = json.dumps(_description(loop, member, policy), indent=1)
    torch.export.save(program, path, extra_files={DESCRIPTION: described})
    return path


def plain_policy(loop: Acting, member: int) -> PlainPolicy:
    """The module that is exported: a copy of the actor with one member's numbers.

    Raises: ConfigError for a member that is not there.
    """
    if not 0 <= member < (size := loop.population.size):
        raise ConfigError(f"There is no member {member}: the run's are 0 to {size - 1}.")
    actor = copy.deepcopy(loop.actor).requires_grad_(False).eval()
    for module in actor.modules():
        for name, value in vars(module).items():
            if isinstance(value, PerMember):
                setattr(module, name, value.numbers[member])
        holders: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for tensors in holders:
            for name, tensor in tensors.items():
                if tensor is not None and tensor.dim():
                    each = len(tensor) // size  # networks of every member
                    own = tensor[member * each : (member + 1) * each].clone()
                    tensors[name] = nn.Parameter(own, requires_grad=False) if tensors is module._parameters else own
    transforms = getattr(loop.method.policy, "observations", ())
    counts = [part.count for part in transforms if isinstance(part, FrameStack)]
    return PlainPolicy(actor, loop.environment.observation_space, loop.environment.action_space, *(counts or [1]))


def _example(policy: PlainPolicy) -> dict[str, Any]:
    """Arguments to trace the program with, for a batch of 3."""
    state = policy.initial(3)
    more = {"begins": torch.ones(3, dtype=torch.bool), "state": state}
    return {"observations": example(policy.observations, 3), **(more if state else {})}


def _description(loop: Acting, member: int, policy: PlainPolicy) -> dict[str, Any]:
    one, state = loop.population.members[member], policy.initial(1)
    return {
        "method": loop.method.id,
        "task": loop.task.id,
        "member": member,
        "seed": one.seed,
        "settings": dict(one.settings),
        "observations": str(policy.observations),
        "actions": str(policy.actions),
        "inputs": list(_example(policy)),
        "outputs": ["action", "state"] if state else ["action"],
        "state": {k: [list(v.shape[1:]), str(v.dtype).removeprefix("torch.")] for k, v in state.items()},
    }


# Between the environment's spaces and flat tensors, as `experience/spaces.py` has it in numpy


def example(space: spaces.Space[Any], count: int) -> Any:
    """A batch of the space as tensors."""
    space = copy.deepcopy(space)  # whose random numbers are its own
    space.seed(0)
    return tensors_of(space, [space.sample() for _ in range(count)])


def tensors_of(space: spaces.Space[Any], observations: Sequence[Any]) -> Any:
    """Observations of the space as one batch of tensors."""
    return tree_map(torch.from_numpy, _plain(batch_of(space, observations)))


def _plain(value: object) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return tuple(_plain(v) for v in value) if isinstance(value, tuple) else np.asarray(value)


def encode(space: spaces.Space[Any], batch: Any) -> Tensor:
    """A batch of raw observations as [N, *observation_shape]."""
    if is_image(space):
        return _pictures(space, batch).to(torch.uint8 if in_bytes(space) else torch.float32)
    found = [(key, _flat(leaf, x)) for (key, leaf), x in zip(leaves(space), leaf_values(space, batch))]
    found.sort(key=lambda pair: pair[0] == f"[{MASK!r}]")
    return torch.cat([x for _, x in found], 1)


def _pictures(space: spaces.Box, batch: Tensor) -> Tensor:
    """[N, C, H, W]."""
    return batch.permute(0, 3, 1, 2) if channels_last(space.shape) else batch


def _flat(leaf: spaces.Space[Any], batch: Tensor) -> Tensor:
    """One leaf as [N, D]."""
    match leaf:
        case spaces.Box() if is_image(leaf):
            return _pictures(leaf, batch).flatten(1).float()
        case spaces.Box() | spaces.MultiBinary():
            flat = batch.flatten(1) if leaf.shape else batch[:, None]
            return flat.float()
        case spaces.Discrete():
            return _one_hot(batch, int(leaf.n), int(leaf.start))
        case spaces.MultiDiscrete():
            each = zip(batch.flatten(1).unbind(1), leaf.nvec.flatten(), leaf.start.flatten(), strict=True)
            return torch.cat([_one_hot(x, int(n), int(start)) for x, n, start in each], 1)
    raise AssertionError(leaf)


def _one_hot(values: Tensor, count: int, start: int) -> Tensor:
    return (values[:, None] == torch.arange(start, start + count)).float()


def decode(space: spaces.Space[Any], flat: Tensor) -> Any:
    """Flat actions [N, A] as the environment takes them; Box actions are clipped."""
    match space:
        case spaces.Discrete():
            return flat[:, 0].long() + int(space.start)
        case spaces.MultiDiscrete():
            return (flat.long().unflatten(1, space.shape) + torch.from_numpy(space.start)).to(_kind(space))
        case spaces.MultiBinary():
            return flat.unflatten(1, space.shape).to(torch.int8)
        case spaces.Box():
            low, high = (torch.from_numpy(np.ascontiguousarray(x)).to(flat.dtype) for x in (space.low, space.high))
            shaped = flat.unflatten(1, space.shape) if space.shape else flat[:, 0]
            return torch.minimum(torch.maximum(shaped, low), high).to(_kind(space))
        case spaces.Dict() | spaces.Tuple():
            inside = list(space.spaces.values()) if isinstance(space, spaces.Dict) else list(space.spaces)
            pieces = zip(inside, flat.split([action_size(s) for s in inside], 1), strict=True)
            each = [decode(s, x) for s, x in pieces]
            return dict(zip(space.spaces, each)) if isinstance(space, spaces.Dict) else tuple(each)
    raise AssertionError(space)


def _kind(space: spaces.Space[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, space.dtype)).dtype
