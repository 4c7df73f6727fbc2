"""Logs as others read them: whole episodes in a folder of Minari's format (HDF5), with how likely each action was."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from etude.core.errors import ConfigError, MissingExtraError
from etude.experience.logs.table import Numbers

VERSION = "0.5.3"
"""Of Minari, whose folder this is."""


class LoggedEpisode(NamedTuple):
    """An episode of T steps.

    Shapes: observations [T + 1, D], the last one included; actions [T, A] as the environment takes them, choices [T];
    rewards, terminations, truncations, behaviour_logp [T].

    Args:
        behaviour_logp: logarithm of the chance of a choice, or of the density of what the environment was given.
        behaviour: who acted. origin: seed, environment and number of the episode, of which it was drawn.
    """

    observations: Numbers
    actions: Numbers
    rewards: Numbers
    terminations: Numbers
    truncations: Numbers
    behaviour_logp: Numbers
    behaviour: str
    origin: Mapping[str, int]

    @property
    def steps(self) -> int:
        """T."""
        return len(self.rewards)


def import_h5py() -> Any:
    """The package that writes HDF5. Raises MissingExtraError."""
    try:
        import h5py
    except ImportError:
        raise MissingExtraError("Writing logs in Minari's format", "data") from None
    return h5py


def write_minari(
    folder: Path, episodes: Sequence[LoggedEpisode], seen: Any, done: Any, about: Mapping[str, Any]
) -> None:
    """Write episodes to `folder/data`, whole or not at all; what is there is replaced.

    Args:
        seen, done: spaces of observations and actions. about: what else `metadata.json` says.

    Raises: MissingExtraError without h5py, ConfigError for spaces that logs do not have.
    """
    h5py, unfinished = import_h5py(), folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    (unfinished / "data").mkdir(parents=True)
    facts = {
        **about, "total_episodes": len(episodes), "total_steps": sum(e.steps for e in episodes),
        "observation_space": json.dumps(told_space(seen)), "action_space": json.dumps(told_space(done)),
        "data_format": "hdf5", "minari_version": VERSION,
    }  # fmt: skip
    (unfinished / "data" / "metadata.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    with h5py.File(unfinished / "data" / "main_data.hdf5", "w") as file:
        for number, episode in enumerate(episodes):
            group = file.create_group(f"episode_{number}")
            group.attrs.update({"id": number, "total_steps": episode.steps, "behaviour": episode.behaviour})
            group.attrs.update(dict(episode.origin))
            for name in ("observations", "actions", "rewards", "terminations", "truncations"):
                group[name] = getattr(episode, name)
            group["infos/behaviour_logp"] = episode.behaviour_logp
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)


def told_space(space: Any) -> dict[str, Any]:
    """A space of Gymnasium as Minari writes it."""
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "dtype": "int64", "start": int(space.start), "n": int(space.n)}
    if isinstance(space, spaces.Box) and len(space.shape) == 1:
        low, high = (np.asarray(x, np.float64).tolist() for x in (space.low, space.high))
        return {"type": "Box", "dtype": space.dtype.name, "shape": list(space.shape), "low": low, "high": high}
    raise ConfigError(f"Logs hold vectors, numbers and choices, and this is {space}.")
