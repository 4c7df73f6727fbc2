"""Files of arrays: NumPy's `.npz`, D4RL's HDF5, Minari's folders. What they hold goes into a `Raw` as it is."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from etude.core.errors import DataError, MissingExtraError
from etude.experience.logs.table import NAMES, Numbers, Raw

HDF5 = (".hdf5", ".h5")
OTHER = {
    "obs": "observations", "states": "observations", "next_obs": "next_observations",
    "terminations": "terminals", "terminated": "terminals", "dones": "terminals",
    "truncations": "timeouts", "truncated": "timeouts",
    "behavior_logp": "behaviour_logp", "logp": "behaviour_logp", "log_probs": "behaviour_logp",
}  # fmt: skip
"""Other names that arrays of steps go by."""


def read_npz(path: Path) -> Raw:
    """Arrays of a `.npz` file by name. Raises DataError for a file that is cut short, or that holds Python objects."""
    try:
        with path.open("rb") as opened, np.load(opened) as file:
            return _raw(path, {name: file[name] for name in file.files})
    except ValueError as error:
        raise DataError(f"{path} holds what is no array of numbers ({error}): save plain arrays.") from None
    except (OSError, EOFError, zipfile.BadZipFile, zipfile.LargeZipFile) as error:
        raise cut_short(path, error) from None


def _raw(path: Path, found: Mapping[str, Numbers]) -> Raw:
    """Arrays by our names, with what the file calls them. The usual name wins over another one."""
    called = {name: name for name in NAMES if name in found}
    for other, name in OTHER.items():
        if other in found and name not in called:
            called[name] = other
    named = {name: found[own] for name, own in called.items()}
    others = {k: v for k, v in found.items() if k not in called.values()}
    return Raw(path, {**named, **others}, {k: v for k, v in called.items() if k != v})


def cut_short(path: Path, error: object) -> DataError:
    """What is said of a file that is not whole."""
    if not path.is_file():
        return DataError(f"{path} is not there: copy the whole folder again.")
    size = path.stat().st_size
    return DataError(
        f"{path} ({size:,} bytes) ends before all that it should hold, or is no such file ({error}): copy it again."
    )


@contextmanager
def _hdf5(path: Path) -> Iterator[Any]:
    """An open HDF5 file. Raises DataError for one that is cut short."""
    try:
        import h5py
    except ImportError:
        raise MissingExtraError(f"HDF5 ({path})", "data") from None
    try:
        with h5py.File(path, "r") as file:
            yield file
    except (OSError, RuntimeError, KeyError) as error:
        raise cut_short(path, error) from None


def read_hdf5(path: Path) -> Raw:
    """Arrays at the top of an HDF5 file, as D4RL has them; its groups (`infos`, `metadata`) are left alone."""
    with _hdf5(path) as file:
        return _raw(path, {name: thing[()] for name, thing in file.items() if hasattr(thing, "dtype")})


# Minari


def is_minari(path: Path) -> bool:
    """Whether a folder is a dataset of Minari's."""
    return (path / "data" / "metadata.json").is_file() or (path / "metadata.json").is_file()


def read_minari(path: Path) -> Raw:
    """A dataset in Minari's folder, in HDF5: an episode a group, with one observation more than there are actions.

    Raises: DataError for other formats and for observations or actions that are not one array.
    """
    data = path / "data" if (path / "data").is_dir() else path
    spaces = _spaces(path, data / "metadata.json")
    columns: dict[str, list[Numbers]] = {name: [] for name in (*NAMES[:6], "behaviour_logp")}
    with _hdf5(data / "main_data.hdf5") as file:
        for group in sorted(file, key=lambda name: int(name.rpartition("_")[2])):
            _episode(path, file[group], columns)
    if not columns["rewards"]:
        raise DataError(f"{path} holds no episode.")
    said = columns.pop("behaviour_logp")
    joined = {name: np.concatenate(pieces) for name, pieces in columns.items()}
    if said and len(said) == len(columns["rewards"]):
        joined["behaviour_logp"] = np.concatenate(said)
    starts = np.cumsum([0, *(len(x) for x in columns["rewards"])])[:-1]
    called = {"terminals": "terminations", "timeouts": "truncations"}
    return Raw(path, joined, called, spaces, starts)


def _spaces(path: Path, file: Path) -> tuple[Any, Any]:
    """Of observations and actions, as a file says. Raises DataError for one that is not whole, and other formats."""
    try:
        about = json.loads(file.read_text(encoding="utf-8"))
        if about.get("data_format", "hdf5") != "hdf5":
            raise DataError(f"{path} keeps its episodes as {about['data_format']}: export it in the format hdf5.")
        return space_of(path, about["observation_space"]), space_of(path, about["action_space"])
    except DataError:
        raise
    except KeyError as error:
        raise cut_short(file, f"it does not say {error}") from None
    except (AttributeError, TypeError, ValueError) as error:
        raise cut_short(file, error) from None


def _episode(path: Path, group: Any, columns: dict[str, list[Numbers]]) -> None:
    """Add an episode. Raises DataError for observations of several leaves, and for one that lacks its last."""
    for name in ("observations", "actions"):
        if not hasattr(group[name], "dtype"):
            raise DataError(
                f"{path}: {name} of {group.name} have parts ({', '.join(group[name])}): flatten them first."
            )
    seen, count = group["observations"][()], len(group["rewards"])
    if len(seen) != count + 1:
        raise DataError(
            f"{path}: {group.name} has {len(seen)} observations and {count} rewards; there must be one more of them."
        )
    columns["observations"].append(seen[:-1])
    columns["next_observations"].append(seen[1:])
    columns["actions"].append(group["actions"][()])
    columns["rewards"].append(group["rewards"][()])
    columns["terminals"].append(group["terminations"][()])
    columns["timeouts"].append(group["truncations"][()])
    if "behaviour_logp" in group.get("infos", ()):
        columns["behaviour_logp"].append(group["infos"]["behaviour_logp"][()].reshape(-1)[-count:])


def space_of(path: Path, text: Any) -> Any:
    """A space of Gymnasium as Minari writes it. Raises DataError for another than a Box or Discrete."""
    from gymnasium import spaces

    told = json.loads(text) if isinstance(text, str) else text
    match told.get("type"):
        case "Box":
            low, high = (np.array(told[k], told["dtype"]).reshape(told["shape"]) for k in ("low", "high"))
            return spaces.Box(low, high, dtype=np.dtype(told["dtype"]).type)
        case "Discrete":
            return spaces.Discrete(int(told["n"]), start=int(told.get("start", 0)))
    raise DataError(f"{path} has a space of the kind {told.get('type')}: only a Box and Discrete are read from logs.")
