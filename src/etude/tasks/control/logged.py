"""Logs as a task: an environment, if there is one, and the steps that others took in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from etude.core.control import ControlTask, Step, VectorEnvironment
from etude.core.errors import ConfigError, DataError
from etude.core.fields import Count, Fraction, Probability
from etude.core.streams import Stream
from etude.experience.logs.columns import is_mapped
from etude.experience.logs.reading import located, open_logs
from etude.experience.logs.replays import read_replay
from etude.experience.logs.table import Logs, Raw, Spaces

OPENED: dict[str, Logs] = {}
"""The logs that were read last, by what they were read as."""


class LoggedTask(ControlTask):
    """Logs, and the environment that they were taken in, where it can be played.

    Args:
        data: a file or folder: .npz, D4RL's .hdf5, a Minari folder or the name of one that is on disk, .csv, .parquet,
            a run folder with a replay, or what `etude data convert` made of any of them.
        columns: what the columns of a table are, as in 'obs=x1,x2 action=u reward=r episode=id done=end'.
        episode_length: rows of an episode, where nothing in the file says where one ends.
        skip_bad_rows: leave out whole episodes in which something is wrong.
        allow: faults that are meant, by the names that their sentences end with.
        environment: where returns are played; without one, spaces come from the data, and nothing is.
        heldout: other logs, by which what was learned is judged at the end where nothing can be played; or a share of
            the episodes of these (0.2), from which then nothing is learned.
        only: the share of the episodes that is read: those that `heldout` of the same share holds out.
        gamma: the discount of what is estimated from these; None: the one that the method learns with.

    >>> LoggedTask(data="logs/week-12.npz").id, LoggedTask.steps
    ('week-12', 50000)
    """

    data: str = ""
    columns: str = ""
    episode_length: Count | None = None
    skip_bad_rows: bool = False
    allow: tuple[str, ...] = ()
    environment: ControlTask | None = None
    heldout: str = ""
    only: Fraction | None = None
    gamma: Probability | None = None
    steps: ClassVar[int] = 50_000

    def check(self) -> None:
        share = self.share
        if self.heldout and self.environment is not None:
            then = "" if share else f", and judge the run in the end: `etude evaluate RUN --data {self.heldout}`"
            raise ConfigError(
                f"heldout is for what cannot be played, and returns are played in {self.environment.id}: leave it "
                f"out{then}."
            )
        if share is not None and not 0 < share < 1:
            raise ConfigError(f"heldout is other logs or a share of these, more than 0 and less than 1, got {share:g}.")
        if share is not None and self.only is not None:
            raise ConfigError("Of what only reads nothing can be held out: leave one of the two out.")
        if self.gamma is not None and not self.heldout:
            raise ConfigError("gamma is the discount of what is estimated from heldout logs: give these too.")

    @property
    def share(self) -> float | None:
        """Of the episodes that are held out; None where that is other logs, or nothing."""
        try:
            return float(self.heldout)
        except ValueError:
            return None

    @property
    def id(self) -> str:  # type: ignore[override]  # depends on a field
        """The environment's, else what the file is called."""
        return Path(self.data).stem if self.environment is None else self.environment.id

    @property
    def runs_on(self) -> str:
        return "nothing" if self.environment is None else self.environment.runs_on

    @property
    def rendered(self) -> str:  # type: ignore[override]  # as the environment's
        """Gymnasium's id of the environment."""
        return "" if self.environment is None else self.environment.rendered

    def needs_reward(self) -> str | None:
        return None if self.environment is not None else "There is no environment to play in: give --task."

    def evaluated(self) -> tuple[str, ...]:
        return super().evaluated() or ("after",) * bool(self.heldout)

    def judged_by(self) -> str:
        """What says how good a policy is that learns from these logs, a sentence."""
        if self.environment is not None:
            return f"Returns are played in {self.id}."
        if self.heldout:
            by = self.heldout if self.share is None else "the episodes that are held out"
            return f"There is no environment to play in: in the end member 0 is judged from {by}."
        return "There is no environment to play in: give --task, or --heldout, other logs or a share of these (0.2)."

    def judging(self) -> LoggedTask:
        """The logs that judge what was learned from these, with columns of the same names."""
        if self.share is not None:
            return self.replace(heldout="", only=self.share, gamma=None)
        return self.replace(data=self.heldout, heldout="", only=None, gamma=None)

    def logs(self) -> Logs:
        """The steps, read and checked once. Raises DataError with all faults of the file."""
        path, own = located(Path(self.data)), {**self.fields(), "heldout": "", "only": None, "gamma": None}
        key = repr((own, path.resolve(), path.stat().st_mtime_ns if path.exists() else 0))
        if key not in OPENED:
            OPENED.clear()
            OPENED[key] = self._opened(path)
        if self.only is None and self.share is None:
            return OPENED[key]
        part = f"{key} {self.only} {self.share}"
        if part not in OPENED:
            OPENED[part] = self._part(OPENED[key])
        return OPENED[part]

    def _part(self, whole: Logs) -> Logs:
        """The episodes that are held out, or those that are not; which is drawn, for all runs alike."""
        share, count = self.only or self.share or 0.0, whole.episodes
        many = round(share * count)
        if not 0 < many < count:
            raise DataError(f"{whole.where} has {count:,} episodes, of which a share of {share:g} is {many:,}.")
        if is_mapped(whole.observations):
            raise DataError(
                f"{whole.where} is read from the disk as it is needed: convert what is held out to a folder of its own."
            )
        held = np.zeros(count, bool)
        held[Stream(0, ("heldout",)).numpy.permutation(count)[:many]] = True
        kept, why = (~held, "held out") if self.only is None else (held, "learned from")
        rows = np.repeat(kept, np.diff(whole.ends, prepend=-1))
        left = f"of {int((~kept).sum()):,} episodes that are {why}"
        return replace(whole.only(rows), dropped={**whole.dropped, left: int((~rows).sum())})

    def _opened(self, path: Path) -> Logs:
        try:
            return open_logs(
                path, self.columns, self.episode_length, self.skip_bad_rows, self.allow, self._spaces(),
                lambda folder: read_replay(folder, self._of_run),
            )  # fmt: skip
        except MemoryError:
            raise DataError(
                f"{path} does not fit into memory, and neither does what is needed to check it: cut it into several "
                "files, and write these to one folder with `etude data convert`."
            ) from None

    def _spaces(self) -> Spaces | None:
        return None if self.environment is None else spaces_of(self.environment)

    def _of_run(self, config: Mapping[str, Any]) -> Spaces:
        """The spaces in which the steps of a run were taken."""
        if self.environment is not None:
            return spaces_of(self.environment)
        from etude.tasks import resolve_task

        task = resolve_task(str(config["task"]))
        if not isinstance(task, ControlTask):
            raise DataError(f"{self.data} is a run on {config['task']}, which is no task of control.")
        return spaces_of(task)

    def make(self, seeds: Sequence[int], count: int, purpose: str = "train") -> VectorEnvironment:
        if self.environment is not None:
            return self.environment.make(seeds, count, purpose)
        return NoEnvironment(self.logs().spaces)

    def pictured(self, seed: int, purpose: str) -> VectorEnvironment | None:
        """One environment that draws where it is; None where the task's does not."""
        pictured = getattr(self.environment, "pictured", None)
        found: VectorEnvironment | None = None if pictured is None else pictured(seed, purpose)
        return found

    def single(self, **arguments: object) -> Any:
        """One environment of Gymnasium, to draw pictures of."""
        single = getattr(self.environment, "single", None)
        if single is None:
            raise ConfigError("its environment has none.")
        return single(**arguments)


def spaces_of(task: ControlTask) -> Spaces:
    """What a task shows and takes."""
    environment = task.make([0], 1, "spaces")
    try:
        return Spaces(environment.observation_space, environment.action_space, task.id)
    finally:
        environment.close()


class NoEnvironment:
    """Spaces without anything behind them."""

    def __init__(self, spaces: Spaces) -> None:
        self.observation_space, self.action_space = spaces.observation_space, spaces.action_space

    def _nothing(self) -> ConfigError:
        return ConfigError("There are logs and no environment, so nothing can be played: give --task.")

    def reset(self) -> np.ndarray:
        """Raises ConfigError."""
        raise self._nothing()

    def step(self, actions: np.ndarray) -> Step:
        """Raises ConfigError."""
        raise self._nothing()

    def state(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


__all__ = ["LoggedTask", "Raw", "spaces_of"]
