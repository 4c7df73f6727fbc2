"""A trained policy of control as it acts: one observation in, one action out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces
from torch.utils._pytree import tree_map

from etude.core.errors import ConfigError
from etude.evaluation.export import plain_policy, tensors_of
from etude.experience.action_masks import mask_of
from etude.experience.spaces import MASK

if TYPE_CHECKING:
    from etude.evaluation.restored import Acting


class TrainedPolicy:
    """One member's policy, with its normaliser and its memory: `policy(observation)` is its likeliest action.

    Args:
        loop: whose policies they are.
        member: which of them.

    Raises: ConfigError for a member that is not there.
    """

    def __init__(self, loop: Acting, member: int = 0) -> None:
        self.plain = plain_policy(loop, member)
        self.reset()

    @property
    def observation_space(self) -> spaces.Space[Any]:
        """What it reads."""
        return self.plain.observations

    @property
    def action_space(self) -> spaces.Space[Any]:
        """What it returns one of."""
        return self.plain.actions

    def reset(self) -> None:
        """An episode begins: forget the one before. Policies without a memory and stacked frames have no need of it."""
        self._state, self._begins = self.plain.initial(1), torch.ones(1, dtype=torch.bool)

    @torch.no_grad()
    def __call__(self, observation: Any, mask: Any = None) -> Any:
        """The action for `env.step`.

        Args:
            observation: as `env.reset` and `env.step` return it.
            mask: `info["action_mask"]`, of environments that say there what is allowed.

        Raises: ConfigError for an observation of another shape, or a mask too much or too little.
        """
        seen = tensors_of(self.observation_space, self._batch(observation, mask))
        if not self._state:
            return self._one(self.plain(seen))
        action, self._state = self.plain(seen, self._begins, self._state)
        self._begins = torch.zeros(1, dtype=torch.bool)
        return self._one(action)

    def _batch(self, observation: Any, mask: Any) -> list[Any]:
        """One observation, with the mask where the policy reads one."""
        space = self.observation_space
        said = isinstance(observation, Mapping) and MASK in observation
        wanted = isinstance(space, spaces.Dict) and MASK in space.spaces and not said
        if wanted == (mask is None):
            hint = f"give policy(observation, info[{MASK!r}])" if wanted else "leave mask out"
            raise ConfigError(f"This policy was trained {'with' if wanted else 'without'} masks from infos: {hint}.")
        if wanted:
            found = mask_of({MASK: mask}, self.action_space)
            if isinstance(found, str):
                raise ConfigError(f"{found}.")
            observation = {"observation": observation, MASK: found}
        return [_read(space, observation, "")]

    def _one(self, actions: Any) -> Any:
        """The only action of a batch, as numpy has it."""
        each: Any = tree_map(lambda x: x[0].numpy(), actions)
        return each[()] if isinstance(each, np.ndarray) else each


def _read(space: spaces.Space[Any], value: Any, where: str) -> Any:
    """An observation without what the policy does not read of it. Raises ConfigError for one of another shape."""
    if isinstance(space, spaces.Dict):
        if not isinstance(value, Mapping) or any(k not in value for k in space.spaces):
            has = ", ".join(map(repr, value)) if isinstance(value, Mapping) else type(value).__name__
            raise ConfigError(f"The policy reads a dict of {', '.join(map(repr, space.spaces))}{where}, got {has}.")
        return {k: _read(s, value[k], f" in {k!r}") for k, s in space.spaces.items()}
    if space.shape is not None and np.shape(value) != space.shape:
        raise ConfigError(
            f"The policy reads one observation of shape {list(space.shape)}{where}, got {list(np.shape(value))}."
        )
    return value
