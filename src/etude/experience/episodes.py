"""One Gymnasium environment whose episodes can be numbered, repeated and lost without harm."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space, iterate

from etude.core.errors import CheckpointError
from etude.core.streams import Stream
from etude.experience.action_masks import has_mask, mask_of, options, with_mask
from etude.experience.environment_faults import FAILURES, SAID, culprit, quick, wrong_reset, wrong_step
from etude.experience.spaces import MASK, action_decoder, batch_of, observation_encoder, readable, without_text

LONGEST = 65_536
"""Steps after which an episode is truncated, in every run alike: a run is resumed by repeating its episodes."""
Journal = tuple[int, np.ndarray | None, np.ndarray | None]
"""Where to go back to: the episode's number, the flat actions [K, A] since its reset, the observation they led to.
Without actions the episode begins, and its first step discards it: the one before it was lost."""


def seed_of(stream: Stream, *names: str | int) -> int:
    """31 bits that the stream below these names decides: what environments take as a seed."""
    return stream.split(*names).key >> 32


def check_fits(name: str, grid: tuple[int, int], backend: str, state: Mapping[str, Any]) -> None:
    """Raise CheckpointError if a state is one of another backend, or of other numbers of members and environments."""
    saved, was = np.shape(state["observations"])[:2], state.get("backend", "built-in")
    if (was, tuple(saved)) != (backend, grid):
        raise CheckpointError(
            f"{name} was saved as {saved[0]}x{saved[1]} environments of {was}, and is {grid[0]}x{grid[1]} of {backend} "
            "now: set task.backend, or install what was there."
        )


class Episodes(gym.Env):
    """Wraps one environment. Episode n resets with a seed that the stream and n decide, whatever happened before.

    It never raises because of the environment. A step that raised ends the episode as truncated, with
    `info["failed"]` (how often) and `info["cause"]`; the environment is made anew for the next episode. What returns
    something that cannot be used says why in `info["wrong"]`. Every reset tells the episode's number in
    `info["episode"]`. Of the environment's own infos only a step's `info["cost"]` and `info["subgoal_progress"]` are
    passed on, and `info["action_mask"]` as a part of the observation. Text in observations is left out.

    Args:
        make: makes the environment.
        stream: the environment's own.
        running: `running[0]` is set to `index` before each call, so that a call that hangs can be told.
        owner: process id of who made the vector; in another process this is a worker, which leaves interrupts to it.
        masked: whether infos say which actions are allowed.
    """

    def __init__(
        self, make: Callable[[], gym.Env], stream: Stream, index: int = 0, running: list[int] | None = None,
        owner: int | None = None, masked: bool = False,
    ) -> None:  # fmt: skip
        if owner is not None and os.getpid() != owner:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self.make, self.stream, self.index = make, stream, index
        self.running = [0] if running is None else running
        self.environment: gym.Env | None = make()
        self.returned, self.action_space = self.environment.observation_space, self.environment.action_space
        self.observation_space, self.masked = readable(self.returned), masked
        self.silent = self.observation_space is not self.returned  # about the text in it
        if masked:
            self.observation_space = with_mask(self.observation_space, self.action_space)
        self.encode, self.decode = observation_encoder(self.observation_space), action_decoder(self.action_space)
        self.usual = quick(self.returned)
        self.observation: Any = None
        self.episode, self.elapsed = -1, 0
        self.journal: Journal | None = None
        self.lost = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The next episode; or, if there is a journal, the moment that it tells of."""
        self.running[0] = self.index
        if self.journal is not None:
            journal, self.journal = self.journal, None
            return self._repeat(*journal)
        if self.lost:  # the next episode has begun already
            self.lost = False
            return self.observation, {"episode": self.episode}
        return self._begin(self.episode + 1)

    def step(self, action: object) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """As Gymnasium has it; see the class for what happens when the environment fails."""
        if self.lost:
            return self.observation, 0.0, False, True, {"lost": True}
        self.running[0] = self.index
        assert self.environment is not None
        try:
            answer = self.environment.step(action)
        except (Exception, SystemExit) as error:
            self._drop()
            return self.observation, 0.0, False, True, {"failed": 1, "cause": f"step raised {culprit(error)}"}
        if not self.usual(answer) and (wrong := wrong_step(self.returned, answer)):
            return self.observation, 0.0, False, True, {"wrong": wrong}
        observation, reward, terminated, truncated, info = answer
        self.elapsed += 1
        terminated, truncated = bool(terminated), bool(truncated) or (self.elapsed >= LONGEST and not terminated)
        if self.silent or self.masked:
            observation = self._shown(observation, info, terminated or truncated)
            if isinstance(observation, str):
                return self.observation, 0.0, False, True, {"wrong": observation}
        # the reset that follows may write into the same array
        self.observation = deepcopy(observation) if terminated or truncated else observation
        said = {key: float(info[key]) for key in SAID if key in info}
        return self.observation, float(reward), terminated, truncated, said

    def _begin(self, episode: int) -> tuple[Any, dict[str, Any]]:
        """Reset for this episode, or for a later one if resetting fails."""
        info: dict[str, Any] = {}
        while True:
            self.episode, self.elapsed = episode, 0
            info["episode"] = episode
            try:
                if self.environment is None:
                    self.environment = self.make()
                answer = self.environment.reset(seed=seed_of(self.stream, "episode", episode))
            except (Exception, SystemExit) as error:
                self._drop()
                info |= {"failed": info.get("failed", 0) + 1, "cause": f"reset raised {culprit(error)}"}
                if info["failed"] >= FAILURES:
                    return self._placeholder(), info
                episode += 1
                continue
            if wrong := wrong_reset(self.returned, answer):
                return self._placeholder(), info | {"wrong": wrong}
            shown = self._shown(*answer)
            if self.masked and isinstance(shown, str):
                return self._placeholder(), info | {"wrong": shown}
            self.observation = shown
            return self.observation, info

    def _shown(self, observation: Any, info: Mapping[str, Any], over: bool = False) -> Any:
        """What policies get of it, or a sentence about its mask; nobody acts when the episode is over."""
        if self.silent:
            observation = without_text(self.returned, observation)
        if not self.masked:
            return observation
        mask = mask_of(info, self.action_space)
        if isinstance(mask, str) and not over:
            return mask
        everything = np.ones(sum(options(self.action_space)), np.int8)
        return {"observation": observation, MASK: everything if isinstance(mask, str) else mask}

    def masks(self) -> bool:
        """Whether infos say which actions are allowed: resets once, to see one."""
        self.running[0] = self.index
        if not options(self.action_space) or has_mask(self.observation_space) or self.environment is None:
            return False
        try:
            answer = self.environment.reset(seed=seed_of(self.stream, "masks"))
        except (Exception, SystemExit):
            self._drop()
            return False
        return wrong_reset(self.returned, answer) is None and MASK in answer[1]

    def _repeat(self, episode: int, actions: np.ndarray | None, expected: np.ndarray | None) -> tuple[Any, Any]:
        """Go to where these actions lead in this episode; if they lead elsewhere, the next episode, marked as lost."""
        observation, info = self._begin(episode)
        if actions is None:
            self.lost = True
            return observation, info
        if self.episode == episode and "wrong" not in info and self._follow(actions, expected):
            return self.observation, info
        observation, again = self._begin(self.episode + 1)
        self.lost = True
        return observation, info | again | {"strayed": True}

    def _follow(self, actions: np.ndarray, expected: np.ndarray | None) -> bool:
        """Whether the actions lead to the expected observation [1, ...] without an end on the way."""
        if len(actions):
            for action in iterate(batch_space(self.action_space, len(actions)), self.decode(actions)):
                *_, terminated, truncated, info = self.step(action)
                if terminated or truncated or info.keys() - set(SAID):
                    return False
        return expected is None or np.array_equal(
            self.encode(batch_of(self.observation_space, [self.observation])), expected, equal_nan=True
        )

    def _placeholder(self) -> Any:
        """Something of the right structure, where there is no observation: the run stops before anybody uses it."""
        if self.observation is None:
            self.observation = self.observation_space.sample()
        return self.observation

    def _drop(self) -> None:
        """Give the environment up: it may be in any state."""
        environment, self.environment = self.environment, None
        if environment is not None:
            with contextlib.suppress(Exception, SystemExit):
                environment.close()

    def close(self) -> None:
        """Close the environment, whatever it says to that."""
        self._drop()
