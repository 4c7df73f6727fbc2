"""Starts of a user's own task, reward, method, environment or config."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Literal, get_args

from etude.core.errors import ConfigError, UnknownNameError
from etude.core.registry import ROOT

Kind = Literal["task", "reward", "method", "environment", "config"]
KINDS: tuple[Kind, ...] = get_args(Kind)
NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*([_-][A-Za-z0-9]+)*")
NEXT = {
    "task": ("etude check {file}", "etude tasks show {file}", "etude train sft --task {file}"),
    "reward": ("etude check {file}:{snake}", "etude train grpo --task compose --reward {file}:{snake}"),
    "method": ("etude check {file}", "etude methods show {file}", "etude compare grpo {file} --task compose"),
    "environment": ("etude check {file}:{camel}", "etude train ppo --task {file}:{camel}"),
    "config": ("etude check {file}", "etude train --config {file}"),
}
"""What to type next."""


def new(kind: str, name: str, folder: Path | str = ".") -> tuple[Path, list[str]]:
    """Write a commented start called `name` into a folder.

    Returns: the file, and what can be typed next.

    Raises: UnknownNameError for a kind that there is not; ConfigError for a name that Python could not import, or if
    there is such a file already.
    """
    if kind not in KINDS:
        raise UnknownNameError("kind of start", kind, KINDS, f"There are: {', '.join(KINDS)}.")
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"A name has letters, digits, '-' and '_', and begins with a letter, as in my-{kind}; got {name!r}."
        )
    words = re.split(r"[_-]", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name))
    snake, kebab, camel = (
        "_".join(words).lower(),
        "-".join(words).lower(),
        "".join(w[:1].upper() + w[1:] for w in words),
    )
    file = Path(folder) / (f"{kebab}.toml" if kind == "config" else f"{snake}.py")
    if kind != "config" and snake in sys.stdlib_module_names:
        raise ConfigError(f"{file.name} would take the place of Python's own module {snake}: choose another name.")
    if file.exists():
        raise ConfigError(f"There is a {file} already, which is left as it is: choose another name.")
    text = next((ROOT / "starts").glob(f"{kind}.*")).read_text(encoding="utf-8")
    for word, own in {f"My{kind.title()}": camel, f"my-{kind}": kebab, f"my_{kind}": snake}.items():
        text = text.replace(word, own)
    text = text.replace(f'"""My {kind}:', f'"""{" ".join(words).capitalize()}:')
    file.write_text(text, encoding="utf-8")
    return file, [line.format(file=file, snake=snake, camel=camel) for line in NEXT[kind]]
