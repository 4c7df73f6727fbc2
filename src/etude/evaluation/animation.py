"""An episode to look at: an animated picture of one member at work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from etude.core.control import ControlTask
from etude.core.errors import ConfigError, EtudeError, MissingExtraError
from etude.policies.control.actor import Player

if TYPE_CHECKING:
    from etude.evaluation.restored import Acting

LONGEST = 500
"""Frames of a picture; longer episodes are shown in larger steps."""
WIDEST = 320
"""Pixels; larger frames are made smaller."""


@torch.no_grad()
def animate(loop: Acting, task: ControlTask, path: Path, member: int = 0, seed: int = 0) -> float:
    """Play one episode of a member with its likeliest actions, and write it as an animated GIF.

    Returns the episode's return. Raises ConfigError if the environment draws no pictures, or there is no such member.
    """
    population = loop.population
    if not 0 <= member < population.size:
        raise ConfigError(f"--member must be from 0 to {population.size - 1}, got {member}.")
    environment, render = _opened(task, population.members[member].seed, f"animation {seed}")
    environment = loop.method.policy.watch(environment)
    player, total = Player(loop.actor, population.size, 1), 0.0
    observations, frames = environment.reset(), Frames()
    with _asked_to_draw(task):
        frames.take(render)
    while True:
        everybody = torch.from_numpy(np.repeat(observations, population.size, 0))
        actions = player.likeliest(everybody)
        step = environment.step(actions[member : member + 1].numpy())
        total += float(step.rewards[0, 0])
        if step.final is not None:
            break
        observations = step.observations
        frames.take(render)
    environment.close()
    _write(frames.kept, path)
    return total


@contextmanager
def _asked_to_draw(task: ControlTask) -> Iterator[None]:
    """The first picture: what draws it may want a screen or a library, and says so by any exception of its own.

    Raises: ConfigError.
    """
    try:
        yield
    except EtudeError:
        raise
    except Exception as error:
        opengl = "Without a screen MuJoCo draws with MUJOCO_GL=egl or MUJOCO_GL=osmesa, where that is there."
        advice = f" {opengl}" if "GL" in f"{error}" else ""
        said = " ".join(f"{error}".split())
        raise ConfigError(f"{task.id} draws no pictures here: {type(error).__name__}: {said}.{advice}") from error


class Frames:
    """Pictures of an episode of any length: of a long one those that are the same number of steps apart."""

    def __init__(self) -> None:
        self.kept: list[Any] = []
        self.seen, self.every = 0, 1

    def take(self, render: Callable[[], Any]) -> None:
        """Keep the picture of this step, if it is one of those."""
        if self.seen % self.every == 0:
            self.kept.append(render())
        self.seen += 1
        if len(self.kept) > 2 * LONGEST:
            self.kept, self.every = self.kept[::2], 2 * self.every


def _opened(task: ControlTask, seed: int, purpose: str) -> tuple[Any, Callable[[], Any]]:
    """One environment, stepped as all are, and what draws where it is."""
    from etude.experience.gymnasium_vector import GymnasiumVector

    pool = task.pictured(seed, purpose) if hasattr(task, "pictured") else None
    if pool is not None:
        return pool, pool.render
    drawn = _drawing(task)
    return GymnasiumVector(lambda: drawn, [seed], 1, purpose, bounds=False), drawn.render


def _drawing(task: ControlTask) -> Any:
    """One environment that renders its frames as arrays."""
    import gymnasium

    try:
        if task.rendered:
            return gymnasium.make(task.rendered, render_mode="rgb_array")
        if hasattr(task, "single"):
            environment = task.single(render_mode="rgb_array")
            if environment.render_mode == "rgb_array":
                return environment
    except (ConfigError, TypeError) as error:
        raise ConfigError(f"{task.id} draws no pictures: {error}") from None
    raise ConfigError(f"{task.id} draws no pictures: it has no render mode 'rgb_array'.")


def _write(frames: list[Any], path: Path) -> None:
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtraError("Animated pictures", "control") from None

    every = -(-len(frames) // LONGEST)
    pictures = [Image.fromarray(np.asarray(f, np.uint8)) for f in frames[::every]]
    width, height = pictures[0].size
    if width > WIDEST:
        pictures = [p.resize((WIDEST, round(height * WIDEST / width))) for p in pictures]
    path.parent.mkdir(parents=True, exist_ok=True)
    pictures[0].save(path, format="GIF", save_all=True, append_images=pictures[1:], duration=33, loop=0)
