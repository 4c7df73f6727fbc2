"""Is an environment one that can be learned from? Each thing that is wrong is found before a run, in one sentence."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from etude.core.control import ControlTask
from etude.core.errors import ConfigError, EnvironmentFault, EtudeError
from etude.core.streams import Stream
from etude.experience.deadline import deadline
from etude.experience.environment_faults import Guard, culprit, shown, wrong_reset, wrong_rewards, wrong_step
from etude.experience.spaces import action_size, batch_of, leaf_values, leaves, observation_shape
from etude.tasks.control import _names
from etude.tasks.control.environment import EnvironmentTask

STEPS = 10_000
"""Steps of random play, unless SECONDS are over before."""
SECONDS = 10.0
REPEATED = 300
"""Steps that are played several times and compared."""
SHORTEST_LIMIT = 50
"""Episodes that always end after the same number of steps, at least this many, end because of a time limit."""
RAISED = 3
"""Times that an environment may raise before the play stops."""
NOISE = (
    "precision lowered", "not within the observation space", "is not a subset", "render", "spec", "infinity",
    "recommend using a symmetric", "default seed argument", "np_random",
)  # fmt: skip
"""What Gymnasium's checker warns of that is no matter here, or that is said better above."""

Level = Literal["fault", "warning", "fact"]


@dataclass(frozen=True)
class Finding:
    """One thing about an environment: a fault stops training, a warning may cost returns, a fact is only told.

    Args:
        about: 'spaces', 'observation', 'reward', 'seeding', ...: what it is about.
        sentence: what, where, and what to do.
    """

    level: Level
    about: str
    sentence: str


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
        raise ConfigError(f"{task.id} is a task of {task.loop}; only environments of control can be checked.")
    if isinstance(task, EnvironmentTask) and not task.pooled:
        found = _Single(task, steps).findings()
    else:
        found = list(_of_vector(task, steps))
    if not any(f.level == "fault" for f in found):
        found += _together(task)
    order = {"fault": 0, "warning": 1, "fact": 2}
    return sorted(found, key=lambda f: order[f.level])


# One environment of Gymnasium


@dataclass
class _Episode:
    length: int
    terminated: bool
    truncated: bool


@dataclass
class _Single:
    """Checks of one environment with Gymnasium's interface."""

    task: EnvironmentTask
    steps: int
    found: dict[tuple[str, str], Finding] = field(default_factory=dict)
    episodes: list[_Episode] = field(default_factory=list)
    played: int = 0
    seconds: float = 0.0

    def add(self, level: Level, about: str, sentence: str, key: str = "") -> None:
        """Note it, unless the same was found before."""
        self.found.setdefault((about, key or sentence), Finding(level, about, sentence))

    def findings(self) -> list[Finding]:
        try:
            self._all()
        except EnvironmentFault as error:  # of `open_environment` and `_call`: there is no going on
            self.add("fault", "running", str(error))
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

    def _call(self, what: str, call: Callable[[], Any]) -> Any:
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
        for finding in _of_spaces(env.observation_space, env.action_space):
            self.add(finding.level, finding.about, finding.sentence)
        return not self._faulty()

    # Random play

    def _play(self, env: gym.Env) -> None:
        """Episodes with random actions; every answer is looked at."""
        guard, until, raised = Guard(env.observation_space), time.monotonic() + SECONDS, 0
        actions = _random_actions(env.action_space)
        while self.played < self.steps and time.monotonic() < until and raised < RAISED:
            where = f"after reset of episode {len(self.episodes)}"
            try:
                begun = self._call("reset", lambda: env.reset(seed=1000 + len(self.episodes)))
            except EtudeError:
                raise
            except Exception as error:
                if isinstance(error, TypeError) and "seed" in str(error):
                    self.add("fault", "reset", "reset must take a seed: def reset(self, *, seed=None, options=None).")
                else:
                    self.add("fault", "reset", f"reset raised {culprit(error)}.")
                return
            if wrong := wrong_reset(env.observation_space, begun):
                self.add("fault", "reset", f"{_capital(wrong)} ({where}).")
                return
            self._numbers(guard, begun[0], None, where)
            if not self._episode(env, begun[0], guard, actions, until):
                raised += 1

    def _episode(
        self, env: gym.Env, observation: Any, guard: Guard, actions: Iterator[Any], until: float
    ) -> bool:  # fmt: skip
        """Play until the episode ends; False if it cannot be gone on with."""
        length = 0
        while self.played < self.steps and time.monotonic() < until:
            action, before = next(actions), deepcopy(observation)
            where = f"step {length + 1} of episode {len(self.episodes)}, action {_plain(action)}"
            begun = time.perf_counter()
            try:
                answer = self._call("a step", lambda: env.step(action))  # noqa: B023 (called at once)
            except EtudeError:
                raise
            except Exception as error:
                self.add("fault", "step", f"step raised {culprit(error)} ({where}).", key=type(error).__name__)
                return False
            self.seconds += time.perf_counter() - begun
            if wrong := wrong_step(env.observation_space, answer):
                self.add("fault", "step", f"{_capital(wrong)} ({where}).", key=wrong)
                return False
            if not _same(before, observation, env.observation_space):
                self.add(
                    "warning", "observation",
                    "step writes into the observation that it returned before; return a new array each time.",
                )  # fmt: skip
            observation, reward, terminated, truncated, _ = answer
            self._numbers(guard, observation, float(reward), where)
            length += 1
            self.played += 1
            if terminated or truncated:
                self.episodes.append(_Episode(length, bool(terminated), bool(truncated)))
                return True
        return True

    def _numbers(self, guard: Guard, observation: Any, reward: float | None, where: str) -> None:
        """Finite, and inside of the space."""
        if found := guard(batch_of(guard.space, [observation])):
            outside = "outside of its space" in found[1]
            tolerated = outside and not (
                _names.own_bounds(self.task.environment) if self.task.bounds is None else self.task.bounds
            )
            self.add(
                "warning" if tolerated else "fault", "observation", f"{_capital(found[1])} ({where}).", str(outside)
            )
        if reward is not None and (wrong := wrong_rewards(np.array([reward]))):
            self.add("fault", "reward", f"{_capital(wrong[1])} ({where}).", "finite")

    def _ends(self) -> None:
        """How episodes end."""
        for finding in _of_ends(self.episodes, self.played):
            self.add(finding.level, finding.about, finding.sentence)
        self.add("fact", "speed", f"{self.played / max(self.seconds, 1e-9):,.0f} steps per second, one environment.")

    # The same again

    def _repeats(self, env: gym.Env) -> None:
        """The same seed and actions, in the same environment and in a new one, must give the same numbers."""
        sampled = _random_actions(env.action_space)
        actions = [next(sampled) for _ in range(REPEATED)]
        first = self._trace(env, 7, actions)
        fresh = self._open()
        new, again, other = (self._trace(*x, actions) for x in ((fresh, 7), (fresh, 7), (fresh, 8)))
        fresh.close()
        for what, trace in (("a new environment", new), ("the same environment", again)):
            if difference := _difference(first, trace, env.observation_space):
                cause = "draw every random number from self.np_random, after super().reset(seed=seed)"
                if difference[0] and what == "a new environment":
                    cause += ", and let reset set everything that an episode changes"
                at = f"at step {difference[0]}" if difference[0] else "right after reset"
                self.add(
                    "fault", "seeding",
                    f"The same seed and actions in {what} give another {difference[1]} {at}: {cause}.", key="repeat",
                )  # fmt: skip
        if not self._faulty() and _difference(new, other, env.observation_space) is None:
            self.add(
                "warning", "seeding",
                "Seeds 7 and 8 give the same episode: if starts should differ, use self.np_random in reset.",
            )  # fmt: skip

    def _trace(self, env: gym.Env, seed: int, actions: list[Any]) -> list[tuple[Any, ...]]:
        """(observation, reward, terminated, truncated) of an episode, and of the next one if it is a short one."""
        observation, _ = self._call("reset", lambda: env.reset(seed=seed))
        trace: list[tuple[Any, ...]] = [(deepcopy(observation), 0.0, False, False)]
        for action in actions:
            observation, reward, terminated, truncated, _ = self._call("a step", lambda: env.step(action))  # noqa: B023
            trace.append((deepcopy(observation), float(reward), bool(terminated), bool(truncated)))
            if terminated or truncated:
                break
        return trace

    # Gymnasium's own checks

    def _gymnasium(self, env: gym.Env) -> None:
        """What `gymnasium.utils.env_checker` finds besides."""
        from gymnasium.utils.env_checker import check_env

        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                self._call("Gymnasium's check_env", lambda: check_env(env.unwrapped, skip_render_check=True))
            except EtudeError:
                raise
            except Exception as error:
                self.add("warning", "gymnasium", f"gymnasium.utils.env_checker objects: {_clean(str(error))}")
        for text in dict.fromkeys(
            _clean(str(w.message)) for w in said if not issubclass(w.category, DeprecationWarning)
        ):
            if not any(noise in text for noise in NOISE):
                self.add("warning", "gymnasium", f"gymnasium.utils.env_checker warns: {text}")


# Many environments


def _of_vector(task: ControlTask, steps: int) -> Iterator[Finding]:
    """Checks of environments that only exist as a vector: EnvPool's, and the built-in ones."""
    try:
        vector = task.make([0], 1, "check")
    except EtudeError as error:
        yield Finding("fault", "making", str(error))
        return
    unlearnable = list(_of_spaces(vector.observation_space, vector.action_space))
    yield from unlearnable
    if any(f.level == "fault" for f in unlearnable):
        return
    actions, episodes, length = _flat_actions(vector.action_space, 1, 1), [], 0
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
                episodes.append(_Episode(length, bool(step.terminated[0, 0]), bool(step.truncated[0, 0])))
                length = 0
    except EtudeError as error:
        yield Finding("fault", "running", str(error))
        return
    finally:
        vector.close()
    yield from _of_ends(episodes, played)
    speed = played / (time.monotonic() - begun)
    yield Finding("fact", "speed", f"{speed:,.0f} steps per second, one environment.")


def _together(task: ControlTask) -> list[Finding]:
    """Members must not feel each other, and a run must go on where it stopped."""
    seeds, count = [11, 12], 2
    try:
        both, alone, resumed = task.make(seeds, count, "check"), task.make(seeds[1:], count, "check"), None
        actions = _flat_actions(both.action_space, 2, count)
        here, there = both.reset()[1:], alone.reset()
        differs = not np.array_equal(here, there)
        for t in range(REPEATED // 3):
            if t == REPEATED // 6:
                resumed = task.make(seeds, count, "check")
                resumed.reset()
                resumed.restore(both.state())
            action = next(actions)
            step, own = both.step(action), alone.step(action[1:])
            differs |= not (
                np.array_equal(step.observations[1:], own.observations)
                and np.array_equal(step.rewards[1:], own.rewards)
            )
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


# What both have


def _of_spaces(observations: spaces.Space, actions: spaces.Space) -> Iterator[Finding]:
    """What policies say to the spaces."""
    from etude.policies.control.distributions import distribution

    try:
        shape = observation_shape(observations)
    except ConfigError as error:
        yield Finding("fault", "spaces", str(error))
        return
    try:
        distribution(actions)
    except ConfigError as error:
        yield Finding("fault", "spaces", str(error))
        return
    yield Finding("fact", "spaces", f"observations {shape} from {_short(observations)}; actions {_short(actions)}.")
    for key, leaf in leaves(actions):
        if isinstance(leaf, spaces.Box) and (odd := _odd_range(leaf)):
            yield Finding(
                "warning", "spaces",
                f"Actions{key} {odd}, and a new policy's have mean 0 and standard deviation 1: "
                "gymnasium.wrappers.RescaleAction(env, -1, 1) makes them fit.",
            )  # fmt: skip


def _odd_range(box: spaces.Box) -> str:
    """What is odd about the range of actions; nothing if a standard normal fits into it."""
    low, high = float(np.min(box.low)), float(np.max(box.high))
    if not np.isfinite([low, high]).all():
        return ""
    if np.any((box.low > 0) | (box.high < 0)) or np.any(box.high - box.low > 20) or np.any(box.high - box.low < 0.2):
        return f"range from {low:g} to {high:g}"
    return ""


def _of_ends(episodes: list[_Episode], played: int) -> Iterator[Finding]:
    """Whether and how episodes end."""
    if not episodes:
        yield Finding(
            "warning", "ends",
            f"No episode ended in {played:,} steps: set terminated or truncated, or wrap it in "
            "gymnasium.wrappers.TimeLimit; returns are only known of episodes that end.",
        )  # fmt: skip
        return
    lengths = [e.length for e in episodes]
    span = f"{min(lengths)}" if min(lengths) == max(lengths) else f"{min(lengths)} to {max(lengths)}"
    ended = sum(e.terminated for e in episodes)
    cut = sum(e.truncated for e in episodes)
    yield Finding(
        "fact", "ends", f"{len(episodes)} episodes of {span} steps; {ended} terminated, {cut} truncated.",
    )  # fmt: skip
    if len(episodes) >= 3 and len(set(lengths)) == 1 and lengths[0] >= SHORTEST_LIMIT and ended == len(episodes):
        yield Finding(
            "warning", "ends",
            f"Every episode terminated after exactly {lengths[0]} steps, which looks like a time limit: report it as "
            "truncated, or the values of states before it are learned wrong.",
        )  # fmt: skip
    elif len(episodes) >= 3 and ended == cut == len(episodes):
        yield Finding(
            "warning", "ends",
            "terminated and truncated are always set together: terminated is for ends after which nothing follows, "
            "truncated for a time limit.",
        )  # fmt: skip


def _random_actions(space: spaces.Space) -> Iterator[Any]:
    """The corners of the space, where it has any, then random actions: the same ones each time."""
    space = deepcopy(space)
    space.seed(0)
    if isinstance(space, spaces.Box) and np.isfinite(space.low).all() and np.isfinite(space.high).all():
        yield from (space.low.copy(), space.high.copy())
    while True:
        yield space.sample()


def _flat_actions(space: spaces.Space, members: int, count: int) -> Iterator[np.ndarray]:
    """Random actions [M, E, A] as policies give them; member m's do not depend on M."""
    size, counts = action_size(space), np.array([n for _, leaf in leaves(space) for n in _choices(leaf)])
    streams = [Stream(m).split("check", "actions").numpy for m in range(members)]
    while True:
        normal = np.stack([g.normal(size=(count, size)) for g in streams])
        uniform = np.stack([g.random((count, size)) for g in streams])
        yield np.where(counts > 0, np.floor(uniform * np.maximum(counts, 1)), normal).astype(np.float32)


def _choices(leaf: spaces.Space) -> list[int]:
    """Options of each number of a flat action; 0 where it is continuous."""
    match leaf:
        case spaces.Discrete():
            return [int(leaf.n)]
        case spaces.MultiDiscrete():
            return [int(n) for n in leaf.nvec.flatten()]
        case spaces.MultiBinary():
            return [2] * action_size(leaf)
    return [0] * action_size(leaf)


def _same(one: Any, two: Any, space: spaces.Space) -> bool:
    return all(
        np.array_equal(a, b, equal_nan=_real(a)) for a, b in zip(leaf_values(space, one), leaf_values(space, two))
    )


def _real(value: Any) -> bool:
    return np.asarray(value).dtype.kind in "fc"


def _difference(one: list[Any], two: list[Any], space: spaces.Space) -> tuple[int, str] | None:
    """The first step at which two traces differ, and in what; None if they are equal."""
    for t, (a, b) in enumerate(zip(one, two)):
        for (key, _), x, y in zip(leaves(space), leaf_values(space, a[0]), leaf_values(space, b[0])):
            if not np.array_equal(x, y, equal_nan=_real(x)):
                return t, f"observation{key}"
        for i, name in enumerate(("reward", "terminated", "truncated"), 1):
            if a[i] != b[i]:
                return t, f"{name} ({a[i]} and {b[i]})"
    return None


def _plain(action: Any) -> str:
    text = " ".join(str(action.tolist() if hasattr(action, "tolist") else action).split())
    return text if len(text) < 80 else text[:77] + "..."


def _short(space: spaces.Space) -> str:
    text = " ".join(str(space).split())
    return text if len(text) < 100 else text[:97] + "..."


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _clean(text: str) -> str:
    """A warning of Gymnasium without its colours and label."""
    for mark in ("\x1b[33m", "\x1b[31m", "\x1b[0m", "WARN: "):
        text = text.replace(mark, "")
    return " ".join(text.split())
