"""Whole episodes of a behaviour, as logs: the same seed gives the same ones."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from etude.core.control import ControlTask, Step
from etude.core.errors import ConfigError
from etude.core.streams import Stream
from etude.evaluation.behaviours import Behaviour
from etude.experience.logs.writing import LoggedEpisode

SIDE_BY_SIDE = 20
"""Environments that are played at a time."""
LONGEST = 100_000
"""Steps without an end after which none is waited for."""


def record(
    behaviour: Behaviour, task: ControlTask, seed: int, purpose: str, steps: int = 0, episodes: int = 0
) -> list[LoggedEpisode]:
    """Episodes until there are at least so many steps, or so many of them.

    Every environment plays the same number, of which the first are taken, so that short ones do not count more often.

    Args:
        purpose: other purposes have other random numbers.

    Raises: ConfigError for episodes that do not end.
    """
    environment = task.make([seed], SIDE_BY_SIDE, purpose)
    generator = Stream(seed).split("behaviour", purpose).torch
    recorder = _Recorder(behaviour.label, seed, isinstance(environment.action_space, spaces.Discrete))
    behaviour.begin(SIDE_BY_SIDE)
    seen = environment.reset()[0]
    while not recorder.enough(steps, episodes):
        actions, logp = behaviour.act(seen, generator)
        step = environment.step(actions[None])
        done = step.terminated[0] | step.truncated[0]
        recorder.take(seen, actions, step, logp)
        if done.any():
            behaviour.ended(done)
        elif recorder.waited > LONGEST:
            raise ConfigError(f"{task.id} had no episode that ended within {LONGEST:,} steps: give it a time limit.")
        seen = step.observations[0]
    environment.close()
    return recorder.first(steps, episodes)


class _Recorder:
    """Steps of E environments as episodes, by the environment."""

    def __init__(self, label: str, seed: int, choices: bool) -> None:
        self.label, self.seed, self.choices, self.waited = label, seed, choices, 0
        self.running: list[list[tuple[np.ndarray, ...]]] = [[] for _ in range(SIDE_BY_SIDE)]
        self.whole: list[list[LoggedEpisode]] = [[] for _ in range(SIDE_BY_SIDE)]

    def take(self, seen: np.ndarray, actions: np.ndarray, step: Step, logp: np.ndarray) -> None:
        """One step everywhere. Episodes whose environment failed are left out."""
        self.waited += 1
        final = iter(() if step.final is None else step.final)
        for e, own in enumerate(self.running):
            row = (seen[e], actions[e], step.rewards[0, e], step.terminated[0, e], step.truncated[0, e], logp[e])
            own.append(row)
            if not (row[3] or row[4]):
                continue
            self.waited, last = 0, next(final)
            if step.faulty is None or not step.faulty[0, e]:
                self.whole[e].append(self._episode(own, last, e))
            self.running[e] = []

    def _episode(self, rows: list[tuple[np.ndarray, ...]], last: np.ndarray, environment: int) -> LoggedEpisode:
        seen, actions, rewards, terminated, truncated, logp = (np.array(column) for column in zip(*rows))
        if self.choices:
            actions = actions[:, 0].astype(np.int64)
        origin = {"seed": self.seed, "environment": environment, "number": len(self.whole[environment])}
        return LoggedEpisode(
            np.concatenate([seen, last[None]]), actions, rewards, terminated, truncated, logp, self.label, origin
        )

    def _ordered(self) -> list[LoggedEpisode]:
        """The first episode of every environment, then the second, as far as all have them."""
        return [episode for each in zip(*self.whole) for episode in each]

    def enough(self, steps: int, episodes: int) -> bool:
        """Whether there is what was asked for."""
        there = self._ordered() if min(map(len, self.whole)) * SIDE_BY_SIDE >= episodes and not self.waited else []
        return bool(there) and sum(e.steps for e in there) >= steps

    def first(self, steps: int, episodes: int) -> list[LoggedEpisode]:
        """As many as were asked for, whole."""
        found, total = list[LoggedEpisode](), 0
        for episode in self._ordered():
            if total >= steps and len(found) >= episodes:
                break
            found.append(episode)
            total += episode.steps
        return found
