"""Logs in CSV and Parquet, whose columns a user names: `obs=x1,x2 action=u reward=r episode=id done=end`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from etude.core.errors import ConfigError, DataError, MissingExtraError, UnknownNameError, nearest
from etude.experience.logs.formats import cut_short
from etude.experience.logs.table import Numbers, Raw

ROLES = {
    "obs": "observations", "action": "actions", "reward": "rewards", "done": "terminals", "timeout": "timeouts",
    "next": "next_observations", "time": "times", "episode": "episode",
    "logp": "behaviour_logp",
}  # fmt: skip
"""What `--columns` may name, and what it is here."""
SUFFIXES = (".csv", ".tsv", ".parquet")


def parse_columns(text: str) -> dict[str, tuple[str, ...]]:
    """What `--columns` says: names of columns by role. Raises ConfigError.

    >>> parse_columns("obs=x1,x2 action=u reward=r")
    {'obs': ('x1', 'x2'), 'action': ('u',), 'reward': ('r',)}
    """
    found: dict[str, tuple[str, ...]] = {}
    for item in json.loads(text) if text.startswith("[") else text.split():
        role, equals, names = item.partition("=")
        if not equals or not names:
            raise ConfigError(f"--columns takes ROLE=NAME,NAME, as in obs=x1,x2 action=u reward=r; got {item!r}.")
        if role not in ROLES:
            raise UnknownNameError("role of a column", role, ROLES, f"There are: {', '.join(ROLES)}.")
        listed = json.loads(names) if names.startswith("[") else names.split(",")
        found[role] = tuple(str(name) for name in listed)
    return found


def read_table(path: Path, columns: Mapping[str, tuple[str, ...]]) -> Raw:
    """The columns of a table by their roles.

    Raises: DataError that names all that is wrong: columns that the file does not have, roles that nobody named, text
        where numbers are needed.
    """
    table = _table(path)
    if not columns:
        raise DataError(
            f"{path} has the columns {', '.join(table)}: say what they are, as in --columns 'obs=x1,x2 action=u "
            "reward=r episode=id done=end'."
        )
    if not len(next(iter(table.values()), ())):
        raise DataError(f"{path} has columns ({', '.join(table)}) and no rows.")
    named = {role: [name for name in names if name in table] for role, names in columns.items()}
    numbers = {name: _numbers(table[name]) for role, names in named.items() if role != "episode" for name in names}
    unknown = dict.fromkeys(name for names in columns.values() for name in names if name not in table)
    faults = [_unknown(name, table) for name in unknown]
    faults += [_text(name, values) for name, values in numbers.items() if values.dtype.kind not in "fiub"]
    faults += [
        f"Column {name!r} is named as {' and as '.join(roles)}: name it once (what is seen cannot hold what is done or "
        "earned)."
        for name, roles in _roles(columns).items()
        if len(roles) > 1
    ]
    faults += [f"No column is named as {role}." for role in ("obs", "action", "reward") if role not in columns]
    if faults:
        raise DataError(f"{path} cannot be learned from:\n" + "\n".join(f"  {fault}" for fault in faults))
    found: dict[str, Numbers] = {}
    for role, names in columns.items():
        several = role in ("obs", "next") or (role == "action" and len(names) > 1)
        own = [numbers[name] for name in names] if role != "episode" else [table[names[0]]]
        found[ROLES[role]] = np.stack(own, -1) if several else own[0]
    called = {ROLES[role]: ",".join(names) for role, names in columns.items()}
    ids = found.pop("episode", None)
    starts = None if ids is None else np.flatnonzero(np.concatenate([[True], ids[1:] != ids[:-1]]))
    return Raw(path, found, called, starts=starts)


def _roles(columns: Mapping[str, tuple[str, ...]]) -> dict[str, list[str]]:
    """What each column is named as. Times and episodes may be seen too; what followed is held against the next row."""
    found: dict[str, list[str]] = {}
    for role, names in columns.items():
        for name in names if role not in ("time", "episode", "next") else ():
            found.setdefault(name, []).append(role)
    return found


def _unknown(name: str, table: Mapping[str, Numbers]) -> str:
    close = nearest(name, table)
    return f"There is no column {name!r}{'; the nearest are ' + ', '.join(close) if close else ''}."


def _table(path: Path) -> dict[str, Numbers]:
    """Columns by name. Raises MissingExtraError, or DataError for a file that cannot be read."""
    try:
        import pyarrow
        from pyarrow import csv, parquet
    except ImportError:
        raise MissingExtraError(f"Tables ({path})", "data") from None
    try:
        if path.suffix == ".parquet":
            read = parquet.read_table(path)
        else:
            read = csv.read_csv(path, parse_options=csv.ParseOptions(delimiter="\t" if path.suffix == ".tsv" else ","))
    except (pyarrow.ArrowException, OSError) as error:
        raise cut_short(path, error) from None
    return {name: read[name].to_numpy(zero_copy_only=False) for name in read.column_names}


def _numbers(values: Numbers) -> Numbers:
    """A column as numbers, times as seconds; text stays text."""
    if values.dtype.kind == "M":
        return values.astype("datetime64[ns]").astype(np.int64) / 1e9
    if values.dtype.kind == "O":
        present = np.array([x is not None for x in values])
        if all(isinstance(x, bool) for x in values[present]):
            return np.where(present, np.where(values == True, 1.0, 0.0), np.nan)  # noqa: E712  # of objects
    return values


def _text(name: str, values: Numbers) -> str:
    """What is said of a column of text: its first word that is no number, if there is one."""
    present = [row for row, value in enumerate(values) if value is not None]
    row = next((row for row in present if not _is_number(values[row])), present[0])
    return f"Column {name!r} holds {values[row]!r} in row {row:,}, and numbers are needed."


def _is_number(text: object) -> bool:
    try:
        float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return True
