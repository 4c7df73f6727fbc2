"""From a path to logs that can be learned from: which format it is, what is wrong with it, what is left out."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces as gym_spaces

from etude.core.errors import DataError
from etude.experience.logs import formats, tables
from etude.experience.logs.columns import FROM_DATA, is_converted, read_converted
from etude.experience.logs.faults import SHOWN, Fault, faults
from etude.experience.logs.steps import Steps, choices_of, listed, steps_of
from etude.experience.logs.table import Logs, Raw, Spaces

FORMATS = (
    ".npz, D4RL's .hdf5, a Minari folder, .csv, .parquet, a run folder with a replay, or what `data convert` wrote"
)


def open_logs(
    path: Path, columns: str = "", episode_length: int | None = None, skip: bool = False,
    allow: Collection[str] = (), spaces: Spaces | None = None, replay: Callable[[Path], Raw] | None = None,
) -> Logs:  # fmt: skip
    """Logs of a file or folder.

    Args:
        columns: of a table, what its columns are.
        episode_length: rows of an episode, where the file does not say where one ends.
        skip: leave out whole episodes in which something is wrong.
        allow: faults that are meant, by name.
        spaces: of the environment that they were taken in, which the logs must agree with; None: as they say.
        replay: what reads the replay of a run folder.

    Raises: DataError, with all faults of the file, a sentence each.
    """
    if is_converted(path):
        if columns or episode_length:
            raise DataError(f"{path} was converted and says itself what its columns are and where episodes end.")
        return read_converted(path, spaces)
    changed = _stamps(path)
    raw = read(path, columns, replay)
    own = raw.spaces and Spaces(*raw.spaces, said_by=str(path))
    known = spaces or own
    steps = steps_of(raw, None if known is None else choices_of(known.action_space), episode_length)
    found = faults(steps, known)
    notes = tuple(fault.sentence for fault in found if fault.meant and fault.meant in allow)
    steps, dropped = _mended(steps, [f for f in found if not (f.meant and f.meant in allow)], skip)
    return replace(_made(steps, spaces or _spaces(steps, own), dropped), changed=changed, notes=notes)


def located(path: Path) -> Path:
    """The path itself; of a Minari dataset's name, as in D4RL/door/human-v2, its folder where it was downloaded to."""
    root = os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets"
    own = Path(root) / str(path).removeprefix("minari:")
    return own if not path.exists() and formats.is_minari(own) else path


def read(path: Path, columns: str, replay: Callable[[Path], Raw] | None) -> Raw:
    """What is in a file or folder, nothing checked. Raises DataError for one that is not there or is no such thing."""
    if not path.exists():
        raise DataError(_not_there(path))
    if columns and path.suffix not in tables.SUFFIXES:
        raise DataError(f"--columns is for tables (CSV, Parquet), and {path} names its arrays itself: leave it out.")
    if path.suffix == ".npz":
        return formats.read_npz(path)
    if path.suffix in formats.HDF5:
        return formats.read_hdf5(path)
    if path.suffix in tables.SUFFIXES:
        return tables.read_table(path, tables.parse_columns(columns))
    if path.is_dir() and formats.is_minari(path):
        return formats.read_minari(path)
    if path.is_dir() and replay is not None and (path / "method.json").is_file():
        return replay(path)
    raise DataError(f"{path} is none of the logs that are read: {FORMATS}.")


def _not_there(path: Path) -> str:
    """Why there is nothing, and how to get it where it is the name of a published dataset."""
    text = str(path)
    if not path.suffix and ("-v" in text or text.startswith(("minari:", "d4rl:"))):
        return (
            f"There is nothing at {path}, and nothing is downloaded. Of a Minari dataset: `minari download {text}`, "
            "then give its name again, or its folder; of D4RL's: give the .hdf5 file."
        )
    return f"There is nothing at {path}: --data takes {FORMATS}."


def _stamps(path: Path) -> dict[str, tuple[int, int]]:
    """Size and time of the last change of every file that is read."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*.hdf5"))
    return {str(p): (p.stat().st_size, p.stat().st_mtime_ns) for p in files if p.is_file()}


def check_unchanged(logs: Logs) -> None:
    """Raise DataError for a file that was written to, or deleted, since it was read."""
    for path, was in logs.changed.items():
        found = _stamps(Path(path))
        if not found:
            raise DataError(f"{path} is gone, which was learned from: put it back, then go on with --resume.")
        if found.get(path) != was:
            raise DataError(f"{path} changed while it was learned from: begin again with what is there now.")


def _mended(steps: Steps, found: list[Fault], skip: bool) -> tuple[Steps, dict[str, int]]:
    """Steps without episodes in which something is wrong, if these may be left out, and how many rows that were."""
    names = sorted({f.meant for f in found if f.meant})
    which = np.unique(np.concatenate([f.episodes for f in found])) if found else np.zeros(0, np.int64)
    if not found or (skip and all(len(f.episodes) for f in found) and len(which) < len(steps.ends)):
        if not len(which):
            return steps, {}
        some = ", ".join(f"{e:,}" for e in which[:SHOWN]) + (", ..." if len(which) > SHOWN else "")
        kept = steps.without(which)
        why = f"those of {len(which):,} episodes with faults ({some})"
        return kept, {why: len(steps.rewards) - len(kept.rewards)}
    raise DataError(listed(steps.raw, [*(f.sentence for f in found), *_ways_out(found, names, skip, len(steps.ends))]))


def _ways_out(found: list[Fault], names: list[str], skip: bool, episodes: int) -> list[str]:
    """What can be done about it, besides mending the file."""
    ways = []
    if skip and all(len(f.episodes) for f in found):
        each = "; ".join(f"{len(f.episodes):,} by the fault {n}" for n, f in enumerate(found, 1))
        ways.append(f"Nothing would be left: of {episodes:,} episodes {each}.")
    elif not skip and any(len(f.episodes) for f in found):
        ways.append("(--skip-bad-rows leaves out whole episodes in which something is wrong.)")
    if names:
        ways.append(f"(If that is meant: --set task.allow={','.join(names)}.)")
    return ways


def _spaces(steps: Steps, own: Spaces | None) -> Spaces:
    """The format's own spaces, or those that the numbers show."""
    if own is not None and (isinstance(own.action_space, gym_spaces.Discrete) or own.action_space.is_bounded()):
        return own
    seen = gym_spaces.Box(-np.inf, np.inf, (steps.observations.shape[1],), np.float32)
    if steps.discrete:
        return Spaces(seen, gym_spaces.Discrete(int(steps.actions.max()) + 1), FROM_DATA)
    low, high = steps.actions.min(0).astype(np.float32), steps.actions.max(0).astype(np.float32)
    if (low == high).any():
        constant = ", ".join(map(str, np.flatnonzero(low == high)))
        raise DataError(
            listed(steps.raw, [f"Actions never change in column {constant}: give --task, whose bounds count."])
        )
    return Spaces(seen, gym_spaces.Box(low, high, dtype=np.float32), FROM_DATA)


def _made(steps: Steps, spaces: Spaces, dropped: dict[str, int]) -> Logs:
    """What is learned from: every row has what it led to, and every episode an end."""
    terminated = steps.terminals > 0
    truncated = steps.last & ~terminated
    following = steps.following
    keep = np.ones(len(terminated), bool)
    if following is None:
        following = np.concatenate([steps.observations[1:], steps.observations[-1:]])
        following[terminated] = steps.observations[terminated]  # what it led to counts 0
        keep = ~truncated
        before = np.flatnonzero(truncated) - 1
        inside = before[(before >= 0) & ~steps.last[np.maximum(before, 0)]]
        truncated = np.zeros_like(truncated)
        truncated[inside] = True
        dropped = {**dropped, "the last of episodes that a limit ended, whose outcome nobody saw": int((~keep).sum())}
    if not keep.any():
        raise DataError(listed(steps.raw, ["No row is left whose outcome is known: give next_observations."]))
    actions = steps.actions
    space: Any = spaces.action_space
    if isinstance(space, gym_spaces.Discrete):
        actions = actions - int(space.start)
    elif space.is_bounded():
        actions = actions.clip(space.low.reshape(-1), space.high.reshape(-1))  # by rounding at most

    def column(values: Any, dtype: Any = np.float32) -> Any:
        return np.ascontiguousarray(values[keep], dtype)

    return Logs(
        steps.raw.where, spaces, column(steps.observations), column(actions), column(steps.rewards),
        column(terminated, bool), column(truncated, bool), column(following), dropped,
        behaviour_logp=None if steps.logp is None else column(steps.logp),
    )  # fmt: skip
