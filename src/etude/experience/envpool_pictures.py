"""Pictures of what nobody but EnvPool can play."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from etude.core.errors import ConfigError
from etude.experience.envpool_vector import EnvPoolVector

DRAWN = {"render_mode": "rgb_array"}
DEADLINE = 60.0
"""Seconds to draw the first picture."""
TRY = """
import json, sys, warnings
warnings.simplefilter("ignore")
import envpool
name, arguments = json.loads(sys.argv[1])
pool = envpool.make(name, env_type="gymnasium", num_envs=1, num_threads=1, **arguments)
pool.reset()
assert pool.render().ndim == 4
"""


class EnvPoolPictures(EnvPoolVector):
    """One environment of EnvPool's, which also draws what it does.

    Args:
        seed: the member's.
        arguments: those of the environment.

    Raises: ConfigError if it cannot be drawn here.
    """

    def __init__(self, name: str, seed: int, purpose: str, arguments: Mapping[str, Any], step_timeout: float) -> None:
        arguments = {**arguments, **DRAWN}
        _try(name, arguments)
        super().__init__(name, [seed], 1, purpose, step_timeout=step_timeout, arguments=arguments)

    def render(self) -> np.ndarray:
        """The picture [H, W, 3] of where it is, in bytes."""
        picture: np.ndarray = self._call("render", int(self.generation[0]))[0]
        return picture.copy()  # EnvPool draws the next one in its place


def _try(name: str, arguments: Mapping[str, Any]) -> None:
    """Draw one picture in a process of its own: without OpenGL's libraries EnvPool ends the process that asks."""
    command = [sys.executable, "-c", TRY, json.dumps([name, dict(arguments)])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{name} draws no pictures: EnvPool had none after {DEADLINE:.0f} seconds.") from None
    if done.returncode:
        said = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise ConfigError(f"{name} draws no pictures here, says EnvPool: {said[-1] if said else 'nothing more'}")
