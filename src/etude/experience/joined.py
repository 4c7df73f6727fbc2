"""Logs that others are put beside, and rewards that somebody's own function says: before they are learned from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from etude.core.errors import ConfigError, DataError
from etude.core.fields import PositiveProbability, WholeNumber
from etude.core.log_slots import LogTransform
from etude.core.registry import load_attribute
from etude.experience.logs.reading import open_logs
from etude.experience.logs.table import Logs, Numbers
from etude.experience.transforms import for_all_alike, paid_otherwise

if TYPE_CHECKING:
    from etude.core.method import Method

LATER = {
    "returns_to_go": "ReturnsToGo", "next_actions": "NextActions", "expert": "MarkExperts",
    "compared": "ScriptedPreferences",
}  # fmt: skip
"""What transforms add to logs, and one that does."""


def nothing_added(part: LogTransform, logs: Logs, names: Iterable[str] = LATER) -> None:
    """Raise ConfigError for logs to which a transform has added one of these, which would no longer be true of them."""
    for name in names:
        if getattr(logs, name) is not None:
            raise ConfigError(
                f"{type(part).__name__} changes logs of which {LATER[name]} has said something already: put it before "
                "that."
            )


class Relabel(LogTransform):
    """What was paid is what a function of one's own says: the same logs, for another task.

    The function is called once with all rows and returns their rewards, so that one array operation serves them all:

        def score(observations, actions, next_observations): return -abs(next_observations[:, 0] - 21.0)

    Args:
        reward: 'file.py:function' or 'package.module:function'. It is called with observations and next_observations
            [N, ...] and actions [N, A] or [N] as the environment takes them, and returns [N] finite numbers.

    Shapes: rewards [N] -> the same. Raises: ConfigError for a function that fails or returns something else.

    >>> import tempfile
    >>> ends = dict(terminated=np.array([False, True]), truncated=np.zeros(2, bool), rewards=np.zeros(2))
    >>> columns = dict(observations=np.zeros((2, 1)), actions=np.zeros((2, 1)), next_observations=np.ones((2, 1)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "heights.py").write_text("def height(o, a, n): return 10 * n[:, 0]")
    ...     Relabel(reward=f"{folder}/heights.py:height")(Logs("here", None, **columns, **ends), None).rewards.tolist()
    [10.0, 10.0]
    """

    reward: str = ""

    def objection(self, method: Method) -> str | None:
        if not self.reward:
            return "has no function to ask: set transforms.relabel.reward=my_rewards.py:score."
        return paid_otherwise(method)

    def __call__(self, logs: Logs, method: Method) -> Logs:
        nothing_added(self, logs, ("returns_to_go", "compared"))
        return replace(logs, rewards=self._said(logs).astype(logs.rewards.dtype))

    def _said(self, logs: Logs) -> Numbers:
        function = load_attribute(self.reward)
        try:
            found = np.asarray(function(logs.observations, logs.actions, logs.next_observations), np.float64)
        except Exception as error:
            raise ConfigError(
                f"Relabel: {self.reward} fails on {logs.rows:,} rows: {type(error).__name__}: {error}. It is called "
                "with all observations, actions and next_observations at once."
            ) from error
        if found.shape != (logs.rows,):
            raise ConfigError(
                f"Relabel: {self.reward} returned {list(found.shape)} where a reward for each row is wanted, "
                f"[{logs.rows}]."
            )
        if not np.isfinite(found).all():
            rows = np.flatnonzero(~np.isfinite(found))
            raise ConfigError(
                f"Relabel: {self.reward} says nothing finite of {len(rows):,} rows, the first of them row {rows[0]}."
            )
        return found

    def sentence(self, before: Logs, after: Logs) -> str:
        was, low, high = float(before.returns.mean()), float(after.returns.min()), float(after.returns.max())
        return (
            f"rewards are what {self.reward} says, returns {low:.4g} to {high:.4g}, in the mean "
            f"{after.returns.mean():.4g} where {was:.4g} was paid"
        )


class Mix(LogTransform):
    """Whole episodes of other logs, drawn at random, stand behind these: a tenth of an expert's, the rest by chance.

    What both lack one of (how likely it was what was done) is forgotten. Everything is held in memory.

    Args:
        data: the other logs, whatever `--data` reads but a run folder: their spaces have to be those of these.
        columns: of a table, what its columns are, as `--columns` says it.
        share: of all rows that are theirs afterwards, to the episode that comes nearest; None: all of theirs.
        seed: of which episodes.

    Shapes: rows [N, ...] -> [N + M, ...]. Raises: ConfigError where there are not as many, or the logs do not agree.

    >>> episodes_for(np.array([10, 10, 10, 10]), rows=20), episodes_for(np.array([50, 10]), rows=24)
    (2, 0)
    """

    data: str = ""
    columns: str = ""
    share: PositiveProbability | None = None
    seed: WholeNumber = 0

    def check(self) -> None:
        if self.share == 1.0:
            raise ConfigError("Mix with share=1 would leave nothing of the logs: give the others to --data instead.")

    def objection(self, method: Method) -> str | None:
        return None if self.data else "has nothing to put beside the logs: set transforms.mix.data=others.npz."

    def __call__(self, logs: Logs, method: Method) -> Logs:
        for_all_alike(self)
        nothing_added(self, logs)
        try:
            others = open_logs(Path(self.data), self.columns, spaces=logs.spaces)
        except DataError as error:
            raise ConfigError(f"Mix cannot put {self.data} beside {logs.where}. {error}") from error
        return joined(logs, others if self.share is None else self._drawn(logs, others, self.share))

    def _drawn(self, logs: Logs, others: Logs, share: float) -> Logs:
        """As many of their episodes as make up the share, in the order in which they were logged."""
        lengths, rows = np.diff(others.ends, prepend=-1), share / (1.0 - share) * logs.rows
        if rows > others.rows:
            most = others.rows / (logs.rows + others.rows)
            raise ConfigError(
                f"Mix wants {round(rows):,} rows of {self.data}, and there are {others.rows:,}, a share of {most:.3g}: "
                "lower share."
            )
        order = np.random.default_rng(self.seed).permutation(others.episodes)
        stays = np.zeros(others.episodes, bool)
        stays[order[: episodes_for(lengths[order], rows)]] = True
        if not stays.any():
            raise ConfigError(
                f"Mix wants {round(rows):,} rows of {self.data}, and its episodes have {lengths.mean():.0f}: raise "
                "share."
            )
        return others.only(np.repeat(stays, lengths))

    def sentence(self, before: Logs, after: Logs) -> str:
        added = after.episodes - before.episodes
        low, high = (float(f(after.returns[-added:])) for f in (np.min, np.max))
        return (
            f"{added:,} episodes of {self.data} behind them, returns {low:.4g} to {high:.4g}, a share of "
            f"{1 - before.rows / after.rows:.3g} of all rows; seed {self.seed}"
        )


def episodes_for(lengths: Numbers, rows: float) -> int:
    """How many of the first episodes come nearest to so many rows, of lengths [E]."""
    return int(np.abs(np.concatenate([[0], lengths.cumsum()]) - rows).argmin())


def joined(first: Logs, second: Logs) -> Logs:
    """The episodes of both, one after another; a column that only one has is nowhere."""
    columns: dict[str, Any] = {}
    for name, column in vars(first).items():
        if isinstance(column, np.ndarray) and name in first.__dataclass_fields__:
            other = getattr(second, name)
            columns[name] = None if other is None else np.concatenate([column, other])
    return replace(first, **columns)
