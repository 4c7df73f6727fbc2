"""Is an environment one that can be learned from? Each thing that is wrong is found before a run, in one sentence."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from etude.core.control import ControlTask
from etude.core.errors import ConfigError, EnvironmentFault, EtudeError
from etude.evaluation.environment_findings import (
    Episode,
    Finding,
    Level,
    capital,
    clean,
    difference,
    flat_actions,
    of_ends,
    of_spaces,
    plain,
    random_actions,
    same,
)  # fmt: skip
from etude.experience.action_masks import allowed, allowed_flat, has_mask, mask_of, options
from etude.experience.deadline import deadline
from etude.experience.environment_faults import Guard, culprit, shown, wrong_reset, wrong_rewards, wrong_step
from etude.experience.spaces import MASK, batch_of, readable, without_text
from etude.tasks.control import _names
from etude.tasks.control.environment import EnvironmentTask

T = TypeVar("T")
STEPS = 10_000
"""Steps of random play, unless SECONDS are over before."""
SECONDS = 10.0
REPEATED = 300
"""Steps that are played several times and compared."""
RAISED = 3
"""Times that an environment may raise before the play stops."""
NOISE = (
    "precision lowered", "not within the observation space", "is not a subset", "render", "spec", "infinity",
    "recommend using a symmetric", "default seed argument", "np_random",
    "users keep the data",
)  # fmt: skip
"""What Gymnasium's checker warns of that is no matter here, or that is said better above."""


def check_environment(environment: str | ControlTask, *, steps: int = STEPS) -> list[Finding]:
    """Play with random actions and look at everything that training relies on.

    Args:
        environment: as `--task` takes it: an id, module:Class, file.py:Class, a built-in task; or a task of control.
        steps: of random play.

    Returns: the findings, faults first. Raises ConfigError or UnknownNameError for what is no environment.
    """
    from etude.tasks import resolve_task

    task = resolve_task(environment) if isinstance(environment, str) else environment
    if not isinstance(task, ControlTask):
        raise ConfigError(f"{task.id} is a task of {task.world}; only environments of control can be checked.")
    if isinstance(task, EnvironmentTask) and not (task.pooled or task.built_in):
        findings = _Single(task, steps).findings()
    else:
        findings = list(_of_vector(task, steps))
    if not any(f.level == "fault" for f in findings):
        findings += _together(task)
    order = {"fault": 0, "warning": 1, "fact": 2}
    return sorted(findings, key=lambda f: order[f.level])


# One environment of Gymnasium


@dataclass
class _Single:
    """Checks of one environment with Gymnasium's interface."""

    task: EnvironmentTask
    steps: int
    found: dict[tuple[str, str], Finding] = field(default_factory=dict)
    episodes: list[Episode] = field(default_factory=list)
    played: int = 0
    seconds: float = 0.0

    def add(self, level: Level, about: str, sentence: str, key: str = "") -> None:
        """Note it, unless the same was found before."""
        self.found.setdefault((about, key or sentence), Finding(level, about, sentence))

    def findings(self) -> list[Finding]:
        try:
            self._all()
        except EtudeError as error:  # of `open_environment` and `_call`: there is no going on
            self.add("fault", "running", str(error))
        except (Exception, SystemExit) as error:
            self.add("fault", "running", f"It raised {culprit(error)}.")
        return list(self.found.values())

    def _all(self) -> None:
        env = self._open()
        try:
            if not self._spaces(env):
                return
            self._play(env)
            if not self._faulty():
                self._ends()
                self._repeats(env)
            if not self._faulty():
                self._gymnasium(env)
        finally:
            with deadline(self.task.step_timeout, lambda: EnvironmentFault(f"{self.task.id}: close hangs.")):
                env.close()

    def _faulty(self) -> bool:
        return any(f.level == "fault" for f in self.found.values())

    def _open(self) -> gym.Env:
        return self._call("making it", self.task.single)

    def _call(self, what: str, call: Callable[[], T]) -> T:
        """Call the environment, with a deadline."""
        limit = self.task.step_timeout
        late = f"{self.task.id}: {what} took more than {limit:g} s: find what it waits for, or raise task.step_timeout."
        with deadline(limit, lambda: EnvironmentFault(late)):
            return call()

    # Spaces

    def _spaces(self, env: gym.Env) -> bool:
        """Whether policies can be built for it."""
        for name in ("observation_space", "action_space"):
            space = getattr(env, name, None)
            if not isinstance(space, spaces.Space):
                self.add("fault", "spaces", f"{name} must be one of gymnasium.spaces, got {shown(space)}.")
        if self._faulty():
            return False
        for finding in of_spaces(env.observation_space, env.action_space):
            self.add(finding.level, finding.about, finding.sentence)
        return not self._faulty()

    # Random play

    def _play(self, env: gym.Env) -> None:
        """Episodes with random actions; every answer is looked at."""
        guard, until, raised = Guard(readable(env.observation_space)), time.monotonic() + SECONDS, 0
        actions = random_actions(env.action_space)
        while self.played < self.steps and time.monotonic() < until and raised < RAISED:
            where = f"after reset of episode {len(self.episodes)}"
            try:
                begun = self._call("reset", lambda: env.reset(seed=1000 + len(self.episodes)))
            except EtudeError:
                raise
            except (Exception, SystemExit) as error:
                if isinstance(error, TypeError) and "seed" in str(error):
                    self.add("fault", "reset", "reset must take a seed: def reset(self, *, seed=None, options=None).")
                else:
                    self.add("fault", "reset", f"reset raised {culprit(error)}.")
                return
            if wrong := wrong_reset(env.observation_space, begun):
                self.add("fault", "reset", f"{capital(wrong)} ({where}).")
                return
            self._numbers(guard, without_text(env.observation_space, begun[0]), None, where)
            if not self._episode(env, begun, guard, actions, until):
                raised += 1

    def _episode(
        self, env: gym.Env, begun: tuple[Any, Any], guard: Guard, actions: Iterator[Any], until: float
    ) -> bool:
        """Play until the episode ends; False if it cannot be gone on with."""
        length, (observation, info) = 0, begun
        while self.played < self.steps and time.monotonic() < until:
            action, before = self._allowed(env, next(actions), observation, info), deepcopy(observation)
            where = f"step {length + 1} of episode {len(self.episodes)}, action {plain(action)}"
            since = time.perf_counter()
            try:
                answer = self._call("a step", lambda: env.step(action))  # noqa: B023 (called at once)
            except EtudeError:
                raise
            except (Exception, SystemExit) as error:
                self.add("fault", "step", f"step raised {culprit(error)} ({where}).", key=type(error).__name__)
                return False
            self.seconds += time.perf_counter() - since
            if wrong := wrong_step(env.observation_space, answer):
                self.add("fault", "step", f"{capital(wrong)} ({where}).", key=wrong)
                return False
            if not same(before, observation, env.observation_space):
                self.add(
                    "warning", "observation",
                    "step writes into the observation that it returned before; return a new array each time.",
                )  # fmt: skip
            observation, reward, terminated, truncated, info = answer
            self._numbers(guard, without_text(env.observation_space, observation), float(reward), where)
            length += 1
            self.played += 1
            if terminated or truncated:
                self.episodes.append(Episode(length, bool(terminated), bool(truncated)))
                return True
        return True

    def _allowed(self, env: gym.Env, action: Any, observation: Any, info: Mapping[str, Any]) -> Any:
        """The action, or one that the environment allows if it says which."""
        inside = has_mask(env.observation_space)
        if not options(env.action_space) or not (inside or MASK in info):
            return action
        mask = mask_of({MASK: observation[MASK]} if inside else info, env.action_space)
        if isinstance(mask, str):
            self.add("fault", "mask", f"{capital(mask)}.", "size")
            return action
        if not inside:
            told = f"info['{MASK}'] says which of {len(mask)} options are allowed; others get probability 0."
            self.add("fact", "mask", told, "info")
        if not all(part.any() for part in np.split(mask, np.cumsum(options(env.action_space))[:-1])):
            where = f"after step {self.played} of random play"
            self.add("fault", "mask", f"The {MASK} allows no action, and the episode goes on ({where}).", "none")
        return allowed(action, env.action_space, mask)

    def _numbers(self, guard: Guard, observation: object, reward: float | None, where: str) -> None:
        """Finite, and inside of the space."""
        if fault := guard(batch_of(guard.space, [observation])):
            outside = "outside of its space" in fault[1]
            tolerated = outside and not (
                _names.own_bounds(self.task.environment) if self.task.bounds is None else self.task.bounds
            )
            self.add(
                "warning" if tolerated else "fault", "observation", f"{capital(fault[1])} ({where}).", str(outside)
            )
        if reward is not None and (wrong := wrong_rewards(np.array([reward]))):
            self.add("fault", "reward", f"{capital(wrong[1])} ({where}).", "finite")

    def _ends(self) -> None:
        """How episodes end."""
        for finding in of_ends(self.episodes, self.played):
            self.add(finding.level, finding.about, finding.sentence)
        self.add("fact", "speed", f"{self.played / max(self.seconds, 1e-9):,.0f} steps per second, one environment.")

    # The same again

    def _repeats(self, env: gym.Env) -> None:
        """The same seed and actions, in the same environment and in a new one, must give the same numbers."""
        sampled = random_actions(env.action_space)
        actions = [next(sampled) for _ in range(REPEATED)]
        first = self._trace(env, 7, actions)
        fresh = self._open()
        new, again, other = (self._trace(*x, actions) for x in ((fresh, 7), (fresh, 7), (fresh, 8)))
        fresh.close()
        for what, trace in (("a new environment", new), ("the same environment", again)):
            if apart := difference(first, trace, env.observation_space):
                cause = "draw every random number from self.np_random, after super().reset(seed=seed)"
                if apart[0] and what == "a new environment":
                    cause += ", and let reset set everything that an episode changes"
                at = f"at step {apart[0]}" if apart[0] else "right after reset"
                self.add(
                    "fault", "seeding",
                    f"The same seed and actions in {what} give another {apart[1]} {at}: {cause}.", key="repeat",
                )  # fmt: skip
        if not self._faulty() and difference(new, other, env.observation_space) is None:
            self.add(
                "warning", "seeding",
                "Seeds 7 and 8 give the same episode: if starts should differ, use self.np_random in reset.",
            )  # fmt: skip

    def _trace(self, env: gym.Env, seed: int, actions: list[Any]) -> list[tuple[Any, ...]]:
        """(observation, reward, terminated, truncated) of an episode, and of the next one if it is a short one."""
        observation, info = self._call("reset", lambda: env.reset(seed=seed))
        trace: list[tuple[Any, ...]] = [(deepcopy(observation), 0.0, False, False)]
        for sampled in actions:
            action = self._allowed(env, sampled, observation, info)
            observation, reward, terminated, truncated, info = self._call("a step", lambda: env.step(action))  # noqa: B023
            trace.append((deepcopy(observation), float(reward), bool(terminated), bool(truncated)))
            if terminated or truncated:
                break
        return trace

    # Gymnasium's own checks

    def _gymnasium(self, env: gym.Env) -> None:
        """What `gymnasium.utils.env_checker` finds besides."""
        from gymnasium.utils.env_checker import check_env

        if has_mask(env.observation_space) or ("mask", "info") in self.found:
            return  # it acts as it likes
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            objection = ""
            try:
                self._call("Gymnasium's check_env", lambda: check_env(env.unwrapped, skip_render_check=True))
            except EtudeError:
                raise
            except Exception as error:
                objection = str(error)
        texts = [str(w.message) for w in warned if not issubclass(w.category, DeprecationWarning)]
        for text in map(clean, [objection, *texts]):
            if text and not any(noise in text for noise in NOISE):
                self.add("warning", "gymnasium", f"gymnasium.utils.env_checker says: {text}")


# Many environments


def _of_vector(task: ControlTask, steps: int) -> Iterator[Finding]:
    """Checks of environments that only exist as a vector: EnvPool's, and the built-in ones."""
    try:
        vector = task.make([0], 1, "check")
    except EtudeError as error:
        yield Finding("fault", "making", str(error))
        return
    unlearnable = list(of_spaces(vector.observation_space, vector.action_space))
    yield from unlearnable
    if any(f.level == "fault" for f in unlearnable):
        return
    actions, episodes, length = flat_actions(vector.action_space, 1, 1), [], 0
    try:
        shape = vector.reset().shape
        begun, played = time.monotonic(), 0
        while played < steps and time.monotonic() < begun + SECONDS:
            step = vector.step(next(actions))
            played, length = played + 1, length + 1
            expected = {"observations": shape, "rewards": (1, 1), "terminated": (1, 1), "truncated": (1, 1)}
            for name, wanted in expected.items():
                if getattr(step, name).shape != wanted:
                    yield Finding("fault", name, f"{name} must be {wanted}, got {getattr(step, name).shape}.")
                    return
            if not (np.isfinite(step.rewards).all() and np.isfinite(step.observations).all()):
                yield Finding("fault", "numbers", f"Observations and rewards must be finite (step {played}).")
                return
            if step.final is not None:
                episodes.append(Episode(length, bool(step.terminated[0, 0]), bool(step.truncated[0, 0])))
                length = 0
    except EtudeError as error:
        yield Finding("fault", "running", str(error))
        return
    finally:
        vector.close()
    yield from of_ends(episodes, played)
    speed = played / (time.monotonic() - begun)
    yield Finding("fact", "speed", f"{speed:,.0f} steps per second, one environment.")


def _together(task: ControlTask) -> list[Finding]:
    """Members must not feel each other, and a run must go on where it stopped."""
    seeds, count = [11, 12], 2
    try:
        both, alone, resumed = task.make(seeds, count, "check"), task.make(seeds[1:], count, "check"), None
        actions = flat_actions(both.action_space, 2, count)
        shown, there = both.reset(), alone.reset()
        differs = not np.array_equal(shown[1:], there)
        for t in range(REPEATED // 3):
            if t == REPEATED // 6:
                resumed = task.make(seeds, count, "check")
                resumed.reset()
                resumed.restore(both.state())
            action = next(actions)
            if has_mask(both.observation_space):
                action = allowed_flat(action, shown, both.action_space)
            step, own = both.step(action), alone.step(action[1:])
            differs |= not (
                np.array_equal(step.observations[1:], own.observations)
                and np.array_equal(step.rewards[1:], own.rewards)
            )
            shown = step.observations
            later = None if resumed is None else resumed.step(action)
            if later is not None and not differs and not np.array_equal(later.observations, step.observations):
                return [Finding("fault", "resuming", "A run that is stopped and resumed would see other observations.")]
        for vector in (both, alone, resumed):
            if vector is not None:
                vector.close()
    except EtudeError as error:
        return [Finding("fault", "running", str(error))]
    if differs:
        return [
            Finding(
                "fault", "independence",
                "Environments influence each other: one beside others gives other numbers than alone. Keep everything "
                "that changes in self, not in the class, the module or numpy.random.",
            )
        ]  # fmt: skip
    return []
