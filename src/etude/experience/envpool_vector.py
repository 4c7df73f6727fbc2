"""EnvPool's environments (arXiv:2206.10558), E for each of M members: written in C++, stepped together."""

from __future__ import annotations

import logging
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from gymnasium import spaces

from etude.core.control import Step
from etude.core.errors import ConfigError, EnvironmentFault
from etude.core.streams import Stream
from etude.experience.environment_faults import Guard, wrong_rewards
from etude.experience.episodes import LONGEST, check_fits, seed_of
from etude.experience.spaces import action_decoder, in_bytes, observation_encoder, observation_shape
from etude.runtime.cores import cores

GENERATION = 8192
"""Steps after which new episodes begin in a new pool: what a resumed run repeats is about this long."""

_log = logging.getLogger("etude.experience")


def import_envpool() -> ModuleType:
    """The package, without the warnings of its import. Raises ImportError without it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import envpool

    module: ModuleType = envpool
    return module


class EnvPoolVector:
    """M x E environments of one EnvPool; see `etude.core.control.VectorEnvironment`.

    A pool cannot be saved, and its environments draw all their episodes from a seed given at the start. So there is a
    pool per generation n, whose environment e of the member with seed s has the seed that (s, purpose, e, n) decides;
    after 8,192 n steps every environment goes over to generation n when its running episode ends. A state is the
    actions since each environment entered its pool; going back makes the pools anew and repeats them.

    EnvPool resets in the step after the last one of an episode; here the environments that ended are reset at once, so
    no step is lost and no transition crosses a reset. An episode of 65,536 steps is truncated.

    What is checked: observations and rewards are finite, choices are in their space. The bounds of a Box are not:
    those that EnvPool declares are not those of its environments. A call that does not come back cannot be stopped;
    the process is ended with a sentence. Environments with pictures (Atari) are stepped by all cores, which changes no
    number; for others handing them over costs what it gains.

    Args:
        name: EnvPool's id.
        seeds: the members'.
        count: E.
        purpose: 'train', 'test', ...: other purposes have other seeds.
        step_timeout: seconds that one step of all environments may take.
        arguments: EnvPool's options of this environment.

    Raises: EnvironmentFault if it cannot be made; ConfigError for several players and spaces without a flat form.
    """

    def __init__(
        self, name: str, seeds: Sequence[int], count: int, purpose: str = "train", *, step_timeout: float = 60.0,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.name, self.grid, self.arguments = name, (len(seeds), count), dict(arguments or {})
        self.streams = [Stream(s).split("environment", purpose, e) for s in seeds for e in range(count)]
        self.watchdog = Watchdog(name, step_timeout)
        self.threads = self._threads()
        self._start_over()
        pool = self._pool(0)
        if pool.config.get("max_num_players", 1) != 1 or isinstance(pool.action_space, spaces.Dict):
            raise ConfigError(f"{name} has several players or several kinds of actions, which no policy here can act.")
        self.observation_space, self.action_space = pool.observation_space, pool.action_space
        self.shape, self.guard = observation_shape(self.observation_space), Guard(self.observation_space, bounds=False)
        self.encode, self.decode = observation_encoder(self.observation_space), action_decoder(self.action_space)
        self.warned = False

    def _start_over(self) -> None:
        n = len(self.streams)
        self.pools: dict[int, Any] = {}
        self.steps, self.base = 0, 0
        self.log: list[np.ndarray] = []  # flat actions [N, A] of the steps since `base`
        self.generation, self.joined = np.zeros(n, np.int64), np.zeros(n, np.int64)
        self.begun, self.lost = np.zeros(n, np.int64), np.zeros(n, bool)

    def reset(self) -> np.ndarray:
        self._start_over()
        self.observations = self._reset(np.arange(len(self.streams), dtype=np.int32))
        return self._shaped(self.observations)

    def step(self, actions: np.ndarray) -> Step:
        flat = np.array(actions, np.float32).reshape(len(self.streams), -1)
        self.log.append(flat)
        rewards, terminated, truncated, final, faulty = self._turn(flat, None)
        self.steps += 1
        if len(self.log) % 1024 == 0:
            self._forget()
        return Step(
            self._shaped(self.observations), rewards.reshape(self.grid), terminated.reshape(self.grid),
            truncated.reshape(self.grid), final, None if faulty is None else faulty.reshape(self.grid),
        )  # fmt: skip

    def _shaped(self, values: np.ndarray) -> np.ndarray:
        return values.reshape(*self.grid, *values.shape[1:])

    # One step

    def _turn(self, flat: np.ndarray, ids: np.ndarray | None) -> tuple[Any, ...]:
        """Act in the environments `ids` (None: all), reset those whose episode ends, write `observations`."""
        observations, rewards, terminated, truncated = self._act(flat, ids)
        if self.steps + 1 >= LONGEST:  # no episode is longer than the run
            too_long = self.steps + 1 - self.begun >= LONGEST
            truncated |= too_long if ids is None else too_long & np.isin(np.arange(len(flat)), ids)
        truncated &= ~terminated
        final = faulty = None
        if np.count_nonzero(self.lost):
            faulty, self.lost = self.lost, np.zeros_like(self.lost)
            rewards[faulty], terminated[faulty], truncated[faulty] = 0.0, False, True
        ended = terminated | truncated
        if np.count_nonzero(ended):
            done = np.flatnonzero(ended).astype(np.int32)
            final = observations[done]
            self._renew(done)
            observations[done] = self._reset(done)
        self.observations = observations
        return rewards, terminated, truncated, final, faulty

    def _act(self, flat: np.ndarray, ids: np.ndarray | None) -> tuple[np.ndarray, ...]:
        """Observations [N, ...], rewards, terminated, truncated [N]; of environments not in `ids`, what was or 0."""
        if ids is None and len(self.pools) == 1:
            return self._checked(self._call("step", next(iter(self.pools)), self.decode(flat)), None, flat)
        n = len(flat)
        merged = [self.observations.copy(), np.zeros(n, np.float32), np.zeros(n, bool), np.zeros(n, bool)]
        for number in list(self.pools):
            some = np.flatnonzero(self.generation == number) if ids is None else ids[self.generation[ids] == number]
            if not len(some):
                continue
            answer = self._call("step", number, self.decode(flat[some]), some.astype(np.int32))
            where = answer[4]["env_id"]
            for all_of_them, part in zip(merged, self._checked(answer, where, flat), strict=True):
                all_of_them[where] = part
        return tuple(merged)

    def _checked(self, answer: Sequence[Any], where: np.ndarray | None, flat: np.ndarray) -> tuple[np.ndarray, ...]:
        """What a pool answered, encoded; `where` says which environments its rows are."""
        raw, rewards, terminated, truncated, _ = answer
        if wrong := wrong_rewards(rewards) or self.guard(raw):
            self._refuse(*wrong, where, flat)
        observations = self.encode(raw)
        if not observations.flags.owndata or not observations.flags.writeable:
            observations = observations.copy()
        return observations, rewards.astype(np.float32), terminated.astype(bool), truncated.astype(bool)

    def _reset(self, ids: np.ndarray) -> np.ndarray:
        """Begin an episode of each of these environments, ids ascending; the first observations [K, ...]."""
        first = np.zeros((len(ids), *self.shape), np.uint8 if in_bytes(self.observation_space) else np.float32)
        for number in np.unique(self.generation[ids]):
            raw, info = self._call("reset", int(number), ids[self.generation[ids] == number])
            if wrong := self.guard(raw):
                self._refuse(*wrong, info["env_id"], None)
            first[np.searchsorted(ids, info["env_id"])] = self.encode(raw)
        return first

    def _renew(self, done: np.ndarray) -> None:
        """Episodes begin; environments of an old generation go over to the newest one."""
        self.begun[done] = self.steps + 1
        newest = (self.steps + 1) // GENERATION
        moving = done[self.generation[done] < newest]
        if len(moving):
            self.generation[moving], self.joined[moving] = newest, self.steps + 1
            self.pools = {k: v for k, v in self.pools.items() if k == newest or (self.generation == k).any()}

    def _forget(self) -> None:
        """Drop actions that nobody has to repeat."""
        old = int(self.joined.min()) - self.base
        del self.log[:old]
        self.base += old

    # The pools

    def _pool(self, number: int) -> Any:
        """The pool of a generation, made when it is first asked for."""
        if number not in self.pools:
            seeds = [seed_of(stream, "anchor", number) for stream in self.streams]
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    pool = import_envpool().make(
                        self.name, env_type="gymnasium", num_envs=len(seeds), env_seed=seeds,
                        num_threads=self.threads, **self.arguments,
                    )  # fmt: skip
                    assert pool.observation_space is not None and pool.action_space is not None  # both warn, once
            except Exception as error:
                raise EnvironmentFault(f"EnvPool cannot make {self.name}: {error}") from None
            self.pools[number] = pool
        return self.pools[number]

    def _threads(self) -> int:
        """How many threads step the environments; their pictures are what takes long."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                space = import_envpool().make_spec(self.name, **self.arguments).gymnasium_observation_space
        except Exception:  # which making the pool says better
            return 1
        return min(cores(), len(self.streams)) if space is not None and in_bytes(space) else 1

    def _call(self, what: str, number: int, *arguments: object) -> Any:
        pool = self._pool(number)
        self.watchdog.calls += 1
        self.watchdog.inside = True
        try:
            return getattr(pool, what)(*arguments)
        except Exception as error:
            raise EnvironmentFault(f"{self.name}: EnvPool's {what} raised {error} (step {self.steps + 1}).") from error
        finally:
            self.watchdog.inside = False

    def _refuse(self, row: int, sentence: str, where: np.ndarray | None, flat: np.ndarray | None) -> None:
        i = row if where is None else int(where[row])
        m, e = divmod(i, self.grid[1])
        action = "" if flat is None else f", action {[round(float(x), 6) for x in flat[i]]}"
        raise EnvironmentFault(
            f"{self.name}: {sentence} (environment {e} of member {m}, step {self.steps + 1}, which is step "
            f"{self.steps - self.begun[i] + 1} of its episode{action})."
        )

    # To another moment

    def state(self) -> dict[str, Any]:
        """Generations and when they were joined [M, E], all actions [T, N, A] since, last observations."""
        self._forget()
        width = self.log[0].shape[1] if self.log else 0
        actions = np.stack(self.log) if self.log else np.zeros((0, len(self.streams), width), np.float32)
        return {
            "backend": "envpool",
            "steps": self.steps,
            "generation": self._shaped(self.generation).copy(),
            "joined": self._shaped(self.joined).copy(),
            "lost": self._shaped(self.lost).copy(),
            "actions": actions,
            "observations": self._shaped(self.observations).copy(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        check_fits(self.name, self.grid, "envpool", state)
        self._start_over()
        expected = np.asarray(state["observations"]).reshape(-1, *self.shape)
        self.observations = np.zeros_like(expected)
        self.generation = np.array(state["generation"], np.int64).reshape(-1)
        self.joined = np.array(state["joined"], np.int64).reshape(-1)
        self.begun = self.joined.copy()
        self.log = list(np.array(state["actions"], np.float32))
        self.base = int(state["steps"]) - len(self.log)
        self._repeat(int(state["steps"]))
        strayed = np.array([not np.array_equal(a, b) for a, b in zip(self.observations, expected, strict=True)])
        self.lost = strayed | np.array(state["lost"], bool).reshape(-1)
        self.observations = expected.copy()
        if strayed.any() and not self.warned:
            self.warned = True
            _log.warning(
                "%s did not repeat itself under the same seed and actions (another version of EnvPool, or another "
                "machine?), so an episode that was running could not be resumed and is discarded.", self.name,
            )  # fmt: skip

    def _repeat(self, steps: int) -> None:
        """Act as the log says, every environment from the moment at which it joined its generation."""
        for number in np.unique(self.generation):
            self._pool(int(number))
        joined = self.joined.copy()
        for now in range(self.base, steps + 1):
            self.steps = now
            new = np.flatnonzero(joined == now).astype(np.int32)
            if len(new):
                self.observations[new] = self._reset(new)
            if now < steps:
                ids = np.flatnonzero(joined <= now)
                self._turn(self.log[now - self.base], None if len(ids) == len(joined) else ids)

    def close(self) -> None:
        self.pools = {}
        self.watchdog.done.set()


class Watchdog:
    """Ends the process when a call into native code does not come back: no signal and no exception can end that call.

    It counts ticks of its own, four in `seconds`, so time in which the whole process stood still does not count.
    """

    def __init__(self, name: str, seconds: float) -> None:
        self.calls, self.inside, self.done = 0, False, threading.Event()
        args = (weakref.ref(self), self.done, name, seconds)
        threading.Thread(target=_watch, args=args, name="etude-watchdog", daemon=True).start()

    def __del__(self) -> None:
        self.done.set()


def _watch(watched: weakref.ref[Watchdog], done: threading.Event, name: str, seconds: float) -> None:
    ticks, last = 0, -1
    while not done.wait(seconds / 4):
        dog = watched()
        if dog is None:
            return
        ticks = ticks + 1 if dog.inside and dog.calls == last else 0
        last = dog.calls
        del dog
        if ticks >= 4:
            print(
                f"etude: {name}: EnvPool did not answer within {seconds:g} s (the task's step_timeout). The run is "
                "safe at its last checkpoint; go on with: etude train --resume DIR", file=sys.stderr, flush=True,
            )  # fmt: skip
            os._exit(EnvironmentFault.exit_code)
