"""`--config FILE`: what a file says, as if it had been typed before what was typed."""

from __future__ import annotations

from typing import Any

from cyclopts import App, ArgumentCollection
from cyclopts.token import Token

FLAGS = {"sinks": "--sink"}
"""Flags that are not called as the keys are."""


def from_file(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Give arguments what the file of `--config` says, unless they were given; `--set` goes on after the file's."""
    named = {name: argument for argument in arguments for name in argument.names}
    asked = named.get("--config")
    if asked is None or not asked.tokens:
        return
    from etude.runs.config import read_config

    path = asked.tokens[-1].value
    typed = [key for key in ("task", "reward") if named[f"--{key}"].tokens]
    for key, value in read_config(path, typed).items():
        flag = FLAGS.get(key, f"--{key.replace('_', '-')}")
        argument = named[flag]
        if key == "set" or not argument.tokens:
            argument.tokens[:0] = [_token(flag, each, path) for each in (value if isinstance(value, list) else [value])]


def _token(flag: str, value: Any, source: str) -> Token:
    if isinstance(value, bool):
        return Token(keyword=flag, implicit_value=value, source=source)
    return Token(keyword=flag, value=str(value), source=source)
