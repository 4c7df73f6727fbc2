"""A run as one file: what `etude train` is told, by the names that `etude.train` has for it.

    method = "grpo"
    task = "compose"
    steps = 150
    with = ["kl-to-reference"]

    [set]
    "optimizer.lr" = 3e-4

TOML, or YAML where the name ends in `.yaml` or `.yml`. Every run writes the file that repeats it, `run.toml`.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from etude.core.edit import assignments
from etude.core.errors import ConfigError, UnknownNameError
from etude.policies.adapters import named
from etude.runs import shorthands
from etude.runs.training import Options

FILE = "run.toml"
"""In the folder of a run: what repeats it."""
FORMATS = (".toml", ".yaml", ".yml")
OWN = ("method", "task", "set", "with", "reward")
LISTS = ("with", "population", "sinks", "callbacks")


def read_config(path: str | Path, given: Collection[str] = ()) -> dict[str, Any]:
    """What a file says, by name; `set` as a list of assignments, `with` and other lists as lists.

    Args:
        given: what is given beside it, and wins.

    Raises: ConfigError if there is no such file or it cannot be read; UnknownNameError, with the nearest names, for a
    key that nothing reads.
    """
    place = Path(path)
    return checked(place, _parsed(place), given)


def checked(place: Path, told: Mapping[str, Any], given: Collection[str] = ()) -> dict[str, Any]:
    """What the file at `place` says, its keys and names checked; as `read_config`."""
    names = [*OWN, *shorthands.NAMES, *(f.name for f in fields(Options))]
    for key in told:
        if key.replace("-", "_") not in names:
            raise UnknownNameError(f"key of {place}", key, names, f"There are: {', '.join(names)}.")
    told = {key.replace("-", "_"): value for key, value in told.items()}
    told |= {key: shorthands.text(told[key]) for key in shorthands.NAMES if isinstance(told.get(key), (dict, list))}
    for key in LISTS:
        if isinstance(told.get(key), str):
            told[key] = [told[key]]
    for key in ("method", "task", "reward"):
        said = told.get(key, "")
        names = said if key == "reward" and isinstance(said, list) else [said]
        if not all(isinstance(name, str) for name in names):
            raise ConfigError(f"{place}: {key} must be a name, got {said!r}.")
        lost = next((name for name in names if name.startswith("<")), None)
        if key not in given and lost is not None:
            raise ConfigError(
                f"{place}: the {key} was {lost}, which only lived in Python: give it again there, or put it in a "
                "file and name it as file.py:name."
            )
    if "set" in told:
        told["set"] = assignments(told["set"])
    return told


def _parsed(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError):
        near = path / FILE
        hint = f" Did you mean {near}?" if near.is_file() else ""
        raise ConfigError(f"There is no file {path}.{hint}") from None
    if path.suffix in FORMATS[1:]:
        import yaml

        try:
            found = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"{path} is no YAML: {' '.join(str(error).split())}.") from None
        if not isinstance(found, dict):
            raise ConfigError(f"{path} must say names and values, as in 'method: grpo', got {found!r}.")
        return {str(key): value for key, value in found.items()}
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is no TOML: {error}.") from None


def merged(path: str | Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """What a file says, with what is given beside it: that wins, and `set` adds to the file's, field by field."""
    told = read_config(path, given)
    both = {**told, **{k: v for k, v in given.items() if k != "set"}}
    if "set" in told or "set" in given:
        both["set"] = [*told.get("set", ()), *assignments(given.get("set", ()))]
    return both


def to_toml(
    method: str, task: str, set: Sequence[str], parts: Sequence[str], reward: str | list[str] | None, options: Options
) -> str:
    """The file of a run: names, what was set, and every option that is not the default.

    >>> print(to_toml("grpo", "compose", ["optimizer.lr=3e-4"], [], None, Options(steps=10)).partition("method")[2])
     = "grpo"
    task = "compose"
    seed = 0
    steps = 10
    <BLANKLINE>
    [set]
    "optimizer.lr" = 3e-4
    <BLANKLINE>
    """
    kept: dict[str, Any] = {"seed": options.seed, "steps": options.steps}
    for option in fields(Options):
        value = getattr(options, option.name)
        if option.name not in (*kept, "out", "quiet", "until") and value not in (None, option.default):
            kept[option.name] = list(value) if isinstance(value, tuple) else value
    said = {"method": method, "task": task, "with": list(parts), "reward": reward, **kept}
    set = [item for item in set if not item.startswith("adapter.")]
    if options.adapter is not None:
        said["adapter"], differing = named(options.adapter)
        set += assignments({f"adapter.{k}": v for k, v in differing.items()})
    lines = ["# What this run was told. `etude train --config FILE` does it again; flags beside it win."]
    lines += [f"{k} = {json.dumps(v, ensure_ascii=False)}" for k, v in said.items() if v not in (None, [])]
    pairs = [item.partition("=")[::2] for item in set]
    if len(dict(pairs)) < len(pairs):  # said twice, and the order matters
        lines += [f"set = {json.dumps(list(set), ensure_ascii=False)}"]
    elif pairs:
        lines += ["", "[set]", *(f"{json.dumps(k)} = {_value(v)}" for k, v in pairs)]
    return "\n".join(lines) + "\n"


NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
"""A number as TOML has it."""


def _value(text: str) -> str:
    """What was set, as a number if it is one."""
    return text if NUMBER.fullmatch(text) else json.dumps(text, ensure_ascii=False)
