"""Gymnasium environments, E for each of M members, as one vector: in this process, or each in its own."""

from __future__ import annotations

import contextlib
import functools
import logging
import multiprocessing
import multiprocessing.connection
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from etude.core.control import Step
from etude.core.errors import EnvironmentFault, EtudeError
from etude.core.streams import Stream
from etude.experience.action_masks import has_mask, nowhere_to_go, options
from etude.experience.deadline import deadline
from etude.experience.environment_faults import FAILURES, SAID, Guard, culprit, ending, noted, wrong_rewards
from etude.experience.episodes import Episodes, Journal, check_fits
from etude.experience.spaces import action_decoder, action_size, batch_of, observation_encoder

GRACE = 5.0
"""Seconds that environments get to close."""

Raw: TypeAlias = tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]
"""What Gymnasium answers to a step: a batch of observations, rewards, terminated, truncated [N], infos."""

_log = logging.getLogger("etude.experience")


class _Lost(Exception):
    """Environments that answer no more, and why: {index: cause}."""

    def __init__(self, causes: dict[int, str]) -> None:
        super().__init__(causes)
        self.causes = causes


class GymnasiumVector:
    """M x E environments of Gymnasium; see `etude.core.control.VectorEnvironment`.

    Episode n of environment e of the member with seed s resets with a seed that (s, purpose, e, n) decides. What
    happens when an environment misbehaves:

    - it raises, hangs, or its process dies: its episode ends as truncated and `Step.faulty`, it is made anew and goes
      on with the next episode; after three episodes in a row EnvironmentFault.
    - it returns something that is not in its space, or a number that is not finite: EnvironmentFault at once.

    A state is the episode's number and the actions since its reset; going back repeats them. An environment that then
    shows another observation is not deterministic: a warning, and its episode is discarded like one that failed.

    Args:
        make: makes one environment; with `workers` it must be importable from other processes.
        seeds: the members'.
        count: E.
        purpose: 'train', 'test', ...: other purposes have other seeds.
        name: what sentences call it.
        workers: each environment in a process of its own.
        step_timeout: seconds that one step of all environments may take.
        bounds: whether observations outside of a Box's bounds are a fault.

    Raises: EnvironmentFault if it cannot be made; ConfigError for spaces that policies have no flat form of.
    """

    def __init__(
        self, make: Callable[[], gym.Env], seeds: Sequence[int], count: int, purpose: str = "train", *,
        name: str = "environment", workers: bool = False, step_timeout: float = 60.0, bounds: bool = True,
    ) -> None:  # fmt: skip
        self.name, self.workers, self.step_timeout = name, workers, step_timeout
        self.grid = (len(seeds), count)
        streams = [Stream(s).split("environment", purpose, e) for s in seeds for e in range(count)]
        self.running = [0]
        self.makers = [
            functools.partial(Episodes, make, stream, i, self.running, os.getpid()) for i, stream in enumerate(streams)
        ]
        self.envs = self._build()
        if self._masks():
            self._end(kill=True)
            self.makers = [functools.partial(maker, masked=True) for maker in self.makers]
            self.envs = self._build()
        self.observation_space, self.action_space = self.envs.single_observation_space, self.envs.single_action_space
        self.encode, self.decode = observation_encoder(self.observation_space), action_decoder(self.action_space)
        self.guard, self.width = Guard(self.observation_space, bounds), action_size(self.action_space)
        self.stuck = nowhere_to_go(self.observation_space, self.action_space)
        self.warned = False
        self._start_over()

    def _start_over(self) -> None:
        n = len(self.makers)
        self.steps, self.base = 0, 0
        self.log: list[np.ndarray] = []  # flat actions [N, A] of the steps since `base`
        self.episode, self.begun = np.zeros(n, np.int64), np.zeros(n, np.int64)
        self.failures = np.zeros(n, np.int64)  # of each environment, in a row
        self.lost = np.zeros(n, bool)  # whose running episode is gone: the next step discards it
        self.observations = np.zeros(0)

    def reset(self) -> np.ndarray:
        self._start_over()
        nothing = np.zeros((0, self.width), np.float32)
        return self._resume([(0, nothing, None) for _ in self.makers])

    def step(self, actions: np.ndarray) -> Step:
        flat = np.array(actions, np.float32).reshape(len(self.makers), -1)
        while True:
            try:
                advanced = self._advance(self.decode(flat))
                break
            except _Lost as lost:
                self._recover(lost.causes, self._journals(), flat)
        answer = self._answer(advanced, flat)
        self.observations = answer.observations.reshape(len(flat), *answer.observations.shape[2:])
        return answer

    # One step

    def _advance(self, actions: object) -> Raw:
        """Step all environments. Raises _Lost."""
        if isinstance(self.envs, SyncVectorEnv):
            with self._limit(self.step_timeout):
                return self.envs.step(actions)
        with self._watched(self.envs):
            self.envs.step_async(actions)
            return self.envs.step_wait(timeout=self.step_timeout)

    def _answer(self, found: Raw, flat: np.ndarray) -> Step:
        """Check what came, and write it down."""
        raw, rewards, terminated, truncated, infos = found
        final = faulty = None
        done = np.flatnonzero(terminated | truncated)
        self._refuse(wrong_rewards(rewards), flat)
        if len(done):
            final, faulty = self._ended(done, infos, flat)
        self._refuse(self.guard(raw), flat)
        if len(done):
            self._renew(done, infos, faulty, flat)
        observations = self.encode(raw)
        self._refuse(self.stuck(observations), flat)
        costs, progress = (self._said(key, infos, faulty, flat) for key in SAID)
        self.steps += 1
        self.lost[:] = False
        self.log.append(flat)
        if len(self.log) % 1024 == 0:
            self._forget()
        shape = self.grid
        return Step(
            observations.reshape(*shape, *observations.shape[1:]), rewards.astype(np.float32).reshape(shape),
            terminated.reshape(shape), truncated.reshape(shape), final,
            None if faulty is None else faulty.reshape(shape), costs, progress,
        )  # fmt: skip

    def _said(self, key: str, infos: dict[str, Any], faulty: np.ndarray | None, flat: np.ndarray) -> np.ndarray | None:
        """What every environment says of its step under a key [M, E], its cost say; None if they say nothing."""
        said = noted(infos, key) | noted(infos.get("final_info", {}), key)
        if not said:
            return None
        for i in range(len(flat)):
            if i not in said and (faulty is None or not faulty[i]):
                self._refuse((i, f"info has no '{key}', which another environment's has: every step must say it"), flat)
        numbers = np.zeros(len(flat))
        numbers[[*said]] = [*said.values()]
        self._refuse(wrong_rewards(numbers, key), flat)
        return numbers.astype(np.float32).reshape(self.grid)

    def _ended(self, done: np.ndarray, infos: dict[str, Any], flat: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Last observations of the episodes that ended, [K, ...], and which of all environments failed, [N]."""
        last = infos.get("final_info", {})
        for wrong in (noted(last, "wrong"), noted(infos, "wrong")):
            for i, sentence in wrong.items():
                self._refuse((i, sentence), flat)
        failed = [*noted(last, "failed"), *noted(last, "lost")]
        faulty = None
        if failed:
            faulty = np.zeros(len(flat), bool)
            faulty[failed] = True
        raw = batch_of(self.observation_space, [infos["final_obs"][i] for i in done])
        if fault := self.guard(raw):
            self._refuse((int(done[fault[0]]), fault[1]), flat)
        return self.encode(raw), faulty

    def _renew(self, done: np.ndarray, infos: dict[str, Any], faulty: np.ndarray | None, flat: np.ndarray) -> None:
        """Note which episodes failed, and that others have begun."""
        self.failures[done if faulty is None else done[~faulty[done]]] = 0
        for where in (infos.get("final_info", {}), infos):
            causes = noted(where, "cause")
            for i, times in noted(where, "failed").items():
                self._count(i, causes[i], flat, int(times))
        self.episode[done] = infos["episode"][done]
        self.begun[done] = self.steps + 1

    def _forget(self) -> None:
        """Drop actions that no running episode needs."""
        old = int(self.begun.min()) - self.base
        del self.log[:old]
        self.base += old

    # Faults

    def _refuse(self, fault: tuple[int, str] | None, flat: np.ndarray | None) -> None:
        """Stop if something was found: environment and sentence."""
        if fault is not None:
            raise EnvironmentFault(f"{self.name}: {fault[1]} ({self._place(fault[0], flat)}).")

    def _place(self, i: int, flat: np.ndarray | None) -> str:
        m, e = divmod(i, self.grid[1])
        place = f"environment {e} of member {m}, step {self.steps + 1}"
        if flat is None:
            return place
        action = [round(float(x), 6) for x in flat[i]]
        age = self.steps - self.begun[i] + 1
        return f"{place}, which is step {age} of its episode {self.episode[i]}, action {action}"

    def _count(self, i: int, cause: str, flat: np.ndarray | None, times: int = 1) -> None:
        """One more episode of an environment that failed."""
        self.failures[i] += times
        if self.failures[i] >= FAILURES:
            raise EnvironmentFault(
                f"{self.name}: {self.failures[i]} episodes in a row failed: {cause} ({self._place(i, flat)})."
            )
        _log.warning("%s: an episode is discarded: %s (%s).", self.name, cause, self._place(i, flat))

    def _limit(self, seconds: float) -> deadline:
        """A limit for calls in this process; who is running then is lost."""
        return deadline(
            seconds,
            lambda: _Lost({self.running[0]: f"did not answer within {seconds:g} s (the task's step_timeout)"}),
        )

    @contextlib.contextmanager
    def _watched(self, envs: AsyncVectorEnv) -> Iterator[None]:
        """Turn the ways in which processes fail into _Lost."""
        try:
            yield
        except multiprocessing.TimeoutError as error:
            late = [i for i, pipe in enumerate(envs.parent_pipes) if not pipe.poll(0)]
            limit = str(error).rpartition("after ")[2].rstrip(".").replace("second(s)", "s")
            raise _Lost({i: f"did not answer within {limit} (the task's step_timeout)" for i in late}) from None
        except (EOFError, ConnectionError):
            processes = envs.processes
            ready = multiprocessing.connection.wait([p.sentinel for p in processes], timeout=GRACE)
            dead = {i: p for i, p in enumerate(processes) if p.sentinel in ready}
            for process in dead.values():
                process.join(GRACE)
            raise _Lost({i: ending(p) for i, p in dead.items()}) from None

    def _recover(self, causes: dict[int, str], journals: list[Journal], flat: np.ndarray | None) -> None:
        """Make everything anew and go back to before the step; those that were lost begin their next episode."""
        self._end(kill=True)
        if not causes:
            raise EnvironmentFault(f"{self.name}: the processes of the environments cannot be reached any more.")
        for i, cause in causes.items():
            self._count(i, f"it {cause}", flat)
            journals[i] = (int(self.episode[i]) + 1, None, None)
            self.episode[i] += 1
        self.envs = self._build()
        self._resume(journals)

    # To another moment

    def _resume(self, journals: list[Journal]) -> np.ndarray:
        """Bring every environment to a moment of an episode; the observations there [M, E, ...]."""
        seconds = self.step_timeout * (len(journals) + sum(0 if a is None else len(a) for _, a, _ in journals))
        try:
            self.envs.set_attr("journal", journals)
            if isinstance(self.envs, AsyncVectorEnv):
                with self._watched(self.envs):
                    self.envs.reset_async()
                    raw, infos = self.envs.reset_wait(timeout=seconds)
            else:
                with self._limit(seconds):
                    raw, infos = self.envs.reset()
        except _Lost as lost:
            self._recover(lost.causes, journals, None)
            return self._shaped()
        for i, sentence in noted(infos, "wrong").items():
            self._refuse((i, sentence), None)
        causes = noted(infos, "cause")
        for i, times in noted(infos, "failed").items():
            self._count(i, causes[i], None, int(times))
        self._refuse(self.guard(raw), None)
        self.episode = np.array(infos["episode"], np.int64)
        self.lost[:] = [actions is None for _, actions, _ in journals]
        self.lost[[*noted(infos, "strayed")]] = True
        self.begun[self.lost] = self.steps
        if noted(infos, "strayed") and not self.warned:
            self.warned = True
            _log.warning(
                "%s did not repeat itself under the same seed and actions, so an episode that was running could not be "
                "resumed and is discarded; `etude check` shows what is not deterministic.", self.name,
            )  # fmt: skip
        self.observations = self.encode(raw).copy()
        self._refuse(self.stuck(self.observations), None)
        return self._shaped()

    def _shaped(self) -> np.ndarray:
        return self.observations.reshape(*self.grid, *self.observations.shape[1:])

    def _journals(self) -> list[Journal]:
        """Where every environment is."""
        return [
            (int(self.episode[i]), None, None) if self.lost[i]
            else (int(self.episode[i]), actions, self.observations[i : i + 1])
            for i, actions in enumerate(self._actions())
        ]  # fmt: skip

    def _actions(self) -> list[np.ndarray]:
        """Actions [K, A] of every environment since its episode began."""
        each = np.stack(self.log) if self.log else np.zeros((0, len(self.makers), self.width), np.float32)
        return [each[start - self.base :, i] for i, start in enumerate(self.begun)]

    def state(self) -> dict[str, Any]:
        """Episode numbers, lengths, failures, losses [M, E], actions of the running episodes, last observations."""
        return {
            "backend": "gymnasium",
            "steps": self.steps,
            "episode": self.episode.reshape(self.grid).copy(),
            "lengths": (self.steps - self.begun).reshape(self.grid),
            "failures": self.failures.reshape(self.grid).copy(),
            "lost": self.lost.reshape(self.grid).copy(),
            "actions": np.concatenate(self._actions()),
            "observations": self._shaped().copy(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        check_fits(self.name, self.grid, "gymnasium", state)
        self._start_over()
        self.steps = self.base = int(state["steps"])
        lengths = np.asarray(state["lengths"], np.int64).reshape(-1)
        self.episode = np.array(state["episode"], np.int64).reshape(-1)
        self.failures = np.array(state["failures"], np.int64).reshape(-1)
        self.lost = np.array(state["lost"], bool).reshape(-1)
        self.observations = np.asarray(state["observations"]).reshape(-1, *np.shape(state["observations"])[2:])
        self.begun = self.steps - lengths
        self._refill(np.split(np.asarray(state["actions"], np.float32), np.cumsum(lengths)[:-1]))
        self._resume(self._journals())

    def _refill(self, actions: list[np.ndarray]) -> None:
        """Write the log [T, N, A] from every environment's own actions."""
        self.base = int(self.begun.min())
        log = np.zeros((self.steps - self.base, len(self.makers), self.width), np.float32)
        for i, own in enumerate(actions):
            log[len(log) - len(own) :, i] = own
        self.log = list(log)

    # The environments themselves

    def _masks(self) -> bool:
        """Whether infos say which actions are allowed; what goes wrong in finding out will again, and is told then."""
        envs = self.envs
        if not options(envs.single_action_space) or has_mask(envs.single_observation_space):
            return False
        try:
            if isinstance(envs, SyncVectorEnv):
                with self._limit(self.step_timeout):
                    return bool(envs.call("masks")[0])
            with self._watched(envs):
                envs.call_async("masks")
                return bool(envs.call_wait(timeout=self.step_timeout)[0])
        except _Lost:
            self._end(kill=True)
            self.envs = self._build()
            return False

    def _build(self) -> SyncVectorEnv | AsyncVectorEnv:
        vector_class = AsyncVectorEnv if self.workers else SyncVectorEnv
        limit = self.step_timeout * len(self.makers)
        late = EnvironmentFault(f"{self.name} took more than {limit:g} s to be made: raise task.step_timeout.")
        try:
            with warnings.catch_warnings(), deadline(limit, lambda: late):
                warnings.simplefilter("ignore")
                return vector_class(self.makers, autoreset_mode=AutoresetMode.SAME_STEP)
        except EtudeError:
            raise
        except Exception as error:
            raise EnvironmentFault(f"{self.name} cannot be made: {culprit(error)}.") from error

    def close(self) -> None:
        """Close the environments, and their processes; those that do not come to an end are ended."""
        if not self.envs.closed:
            self._end(kill=False)

    def _end(self, kill: bool) -> None:
        processes = getattr(self.envs, "processes", [])
        if not kill or not processes:
            with contextlib.suppress(Exception), deadline(GRACE, TimeoutError):
                self.envs.close()
        if not self.envs.closed:
            self.envs.closed = True
            until = time.monotonic() + GRACE
            for process in processes:
                process.kill()
            for process in processes:
                process.join(max(0.0, until - time.monotonic()))
