"""What is given in Python instead of by name: environments, rows, a loaded model, tasks, rewards.

What has a name gets it: a class or function of a module that can be imported, the id of what Gymnasium made. Rows and
models are written beside the runs, to `given/`, under names that their content decides: runs that were given the same
share them. What is left lives in the running program only and is called `<MyEnv>`: its source is kept in the run's
folder, and resume asks for the thing itself: `etude.resume(folder, task=MyEnv)`.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from etude.core.edit import assignments
from etude.core.errors import CheckpointError, ConfigError, DataError, EtudeError
from etude.core.registry import reference
from etude.core.task import Task
from etude.rewards import several
from etude.rewards.several import Scoring
from etude.runtime import disk, fingerprints
from etude.runtime.sources import COPIES

FOLDER = "given"
"""Where rows and models are kept beside the runs, and sources of what has no name in a run's `sources/`."""
SPLITS = ("train", "test", "validation")


def home(out: object) -> Path:
    """Where rows and models are kept for a run in this folder: beside it."""
    return (Path(str(out)).parent if out else Path("runs")) / FOLDER


# Tasks


def task_of(thing: object, where: Path) -> str | Task:
    """A task from what a user gave: its name, a Task, or what one can be made of.

    Args:
        thing: also a gymnasium.Env class, a function that makes such environments, one that `gym.make` made; rows as a
            list or another iterable of dicts, a dict of those by split, a `datasets.Dataset` or `DatasetDict`.
        where: the folder for rows.

    Raises: ConfigError or DataError for what is none of these.
    """
    if isinstance(thing, (str, Path)):
        return str(thing)
    if isinstance(thing, Task):
        return thing
    gym = sys.modules.get("gymnasium")
    if gym is not None and isinstance(thing, (gym.Env, gym.vector.VectorEnv)):
        return _made(thing)
    if isinstance(thing, type) and issubclass(thing, Task):
        return thing()
    if callable(thing):
        return _environment(thing)
    if isinstance(thing, Iterable):
        return rows_of(thing, where)
    raise ConfigError(
        f"A task is its name, a Task, an environment's class or a function that makes one, or rows (dicts with a "
        f"prompt); got {type(thing).__name__}."
    )


def _environment(make: Callable[..., Any], label: str = "") -> str | Task:
    """The task of environments that a class or function makes. Raises ConfigError if it makes none."""
    from etude.tasks.control import _names
    from etude.tasks.control.environment import EnvironmentTask

    shown = label or _label(make)
    if not (_names.is_environment(make) or _names.returns_environment(make, shown)):
        raise ConfigError(
            f"{shown} is no class of gymnasium.Env, nor a function without arguments that returns such an environment."
        )
    name = None if label else reference(make)
    return name or EnvironmentTask(_names.give(shown, make))


def _made(environment: Any) -> str | Task:
    """The task of environments like one that Gymnasium made: many are needed, so they are made again as it was."""
    import gymnasium as gym

    from etude.tasks.control.environment import EnvironmentTask

    spec = getattr(environment, "spec", None)
    if spec is None or isinstance(environment, gym.vector.VectorEnv):
        raise ConfigError(
            f"{type(environment).__name__} was given as one that is made already, and many are needed: give its class, "
            f"or a function that makes one, as in lambda: {type(environment.unwrapped).__name__}(...)."
        )
    kwargs = {k: v for k, v in spec.kwargs.items() if (k, v) != ("render_mode", None)}
    usual = gym.registry.get(spec.id)
    same = {"kwargs", "disable_env_checker"}
    if usual is not None and replace(spec, **{k: getattr(usual, k) for k in same}) == usual:
        try:
            return EnvironmentTask(spec.id, arguments=kwargs) if kwargs else spec.id
        except ConfigError:  # arguments that are no plain data
            pass
    return _environment(lambda: gym.make(spec), f"<{spec.id}>")


def named(task: Task) -> tuple[str, list[str]]:
    """The name of a task and the fields to set on it; `<Class>` for one that only lives in Python."""
    values = task.fields()
    for name in (task.id, reference(type(task))):
        try:
            usual = task_from(name) if name else None
            if usual is None or type(usual) is not type(task):
                continue
            differ = {k: v for k, v in values.items() if usual.fields()[k] != v}
            fields = assignments({f"task.{k}": json.dumps(v) if isinstance(v, dict) else v for k, v in differ.items()})
            if task_from(name, fields) == task:
                return str(name), fields
        except EtudeError:
            continue
    return (task.id if task.id.startswith("<") else f"<{type(task).__qualname__}>"), []


def task_from(name: str | None, fields: Iterable[str] = ()) -> Task:
    """The task of a name, with fields set."""
    from etude.runs.training import compose_task

    return compose_task(str(name), list(fields))


# Rows


def rows_of(thing: Iterable[Any], where: Path) -> str:
    """Write rows down and return the file's name; a folder's if they come by split.

    Raises: DataError for a row that is not a dict of what JSON holds.
    """
    if isinstance(thing, Mapping):
        unknown = [k for k in thing if k not in SPLITS]
        if unknown or "train" not in thing:
            raise DataError(f"Rows by split are {', '.join(SPLITS)}, of which train is needed; got {', '.join(thing)}.")
        parts = {f"{split}.jsonl": _lines(rows, f"{split} row") for split, rows in thing.items()}
    else:
        parts = {"": _lines(thing, "row")}
    with _kept(where) as scratch:
        for name, lines in parts.items():
            with (scratch / (name or "rows.jsonl")).open("w", encoding="utf-8") as file:
                file.writelines(lines)
        return str(scratch.keep("rows") if "" not in parts else scratch.keep("rows", "rows.jsonl"))


def _lines(rows: Iterable[Any], what: str) -> Iterator[str]:
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            hint = " (of a pandas frame: frame.to_dict('records'))" if isinstance(row, str) else ""
            raise DataError(f"{what} {number} is a {type(row).__name__}; rows are dicts with a prompt{hint}.")
        try:
            yield json.dumps(dict(row), ensure_ascii=False, allow_nan=False) + "\n"
        except (TypeError, ValueError):
            column = next(k for k, v in row.items() if not _plain(v))
            value = row[column]
            raise DataError(
                f"{what} {number} has {type(value).__name__} in its column {column!r}, which JSON cannot hold: rows "
                "are text, finite numbers, lists and dicts."
            ) from None


def _plain(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


# Models


def model_of(model: object, tokenizer: object, where: Path) -> str:
    """The name of a model: a loaded one is written down with its tokenizer, as `save_pretrained` does.

    Raises: ConfigError for a model without its tokenizer, with adapters, or that could not be loaded again.
    """
    if isinstance(model, (str, Path)):
        if tokenizer is not None:
            raise ConfigError(f"The tokenizer of {model} is the one in its folder: leave tokenizer out.")
        return str(model)
    if hasattr(model, "peft_config"):
        raise ConfigError(
            "The model has adapters: give the base with adapter='lora' to train one, or merge_and_unload() it first."
        )
    if not hasattr(model, "save_pretrained"):
        raise ConfigError(f"model must be a name or a causal language model of transformers, got {_kind(model)}.")
    if not hasattr(tokenizer, "save_pretrained"):
        raise ConfigError(
            "A loaded model needs its tokenizer: etude.train(..., model=model, tokenizer=tokenizer), got "
            f"{_kind(tokenizer)}."
        )
    from transformers import AutoConfig

    with _kept(where) as scratch:
        model.save_pretrained(scratch.path)
        tokenizer.save_pretrained(scratch.path)
        try:
            AutoConfig.from_pretrained(scratch.path)
        except (ValueError, OSError) as error:
            raise ConfigError(
                f"{type(model).__name__} is of no type that transformers loads by itself: register it "
                f"(AutoModelForCausalLM.register), or save it with its code and name the folder. ({error})"
            ) from None
        return str(scratch.keep("model"))


def _kind(thing: object) -> str:
    return "nothing" if thing is None else type(thing).__name__


@dataclass(frozen=True)
class _Scratch:
    """A folder that is thrown away but for what is kept."""

    path: Path
    where: Path

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def keep(self, label: str, file: str = "") -> Path:
        """Keep the folder, or one file of it, under a name that the content decides; what is there already stays."""
        source = self.path / file
        found = json.dumps(fingerprints.content(source), sort_keys=True)
        target = self.where / f"{label}-{hashlib.sha256(found.encode()).hexdigest()[:8]}{source.suffix}"
        if not target.exists():
            shutil.move(source, target)
        return target


@contextmanager
def _kept(where: Path) -> Iterator[_Scratch]:
    """A scratch folder beside what is kept."""
    disk.make_folder(where)
    with tempfile.TemporaryDirectory(prefix=".", dir=where) as path:
        yield _Scratch(Path(path), where)


# All of it


def for_processes(
    task: Any, reward: Scoring | None, model: Any, tokenizer: object, where: Path
) -> tuple[str, list[str], list[str], str]:
    """Names for runs that processes of their own train: the task with fields, the rewards, the model.

    Raises: ConfigError for what only lives in this program.
    """
    found = task_of(task, where)
    name, fields = (found, []) if isinstance(found, str) else named(found)
    scored = several.text(reward)
    for what, label in {"task": name, "reward": several.only_python(scored)}.items():
        if str(label).startswith("<"):
            raise ConfigError(
                f"These runs are trained by processes of their own, which cannot be given the {what} {label}: put it "
                "in a file and name it as file.py:name."
            )
    listed = [scored] if isinstance(scored, str) else scored or []
    return name, fields, listed, model_of(model, tokenizer, where)


# What has no name


def _label(thing: object) -> str:
    """`<MyEnv>` of a class or a function."""
    name = getattr(thing, "__qualname__", type(thing).__qualname__)
    return f"<{name.rpartition('.')[2].strip('<>')}>"


def spoken(name: str) -> str:
    """How what a run calls `name` is written in a call.

    >>> spoken("<MyEnv>"), spoken("<lambda>")
    ('MyEnv', 'lambda: ...')
    """
    return "lambda: ..." if name.startswith("<lambda") else name.strip("<>")


def source_of(thing: object) -> str:
    """The source of a class, a function, or a task's class with its fields; a sentence where it cannot be read.

    Of a lambda its own expression, wherever it stands; of a partial its function and arguments.
    """
    from etude.tasks.control import _names

    if isinstance(thing, list):
        return "\n".join(map(source_of, thing))
    if isinstance(thing, Task):
        made = _names.GIVEN.get(thing.id)
        if made is not None:
            return source_of(made)
        fields = ", ".join(f"{k}={v!r}" for k, v in thing.fields().items())
        return f"{source_of(type(thing))}\n# with {fields}\n"
    if isinstance(thing, partial):
        given = [*map(repr, thing.args), *(f"{k}={v!r}" for k, v in thing.keywords.items())]
        return f"{source_of(thing.func)}\n# with {', '.join(given)}\n"
    try:
        return _lambda(thing) or inspect.getsource(thing)  # type: ignore[arg-type]  # any object may be asked for it
    except (OSError, TypeError):
        return f"# the source of {_label(thing)} cannot be read\n"


def _lambda(thing: object) -> str | None:
    """The expression of a lambda, without what stands around it; None for what is none, or cannot be told apart."""
    code = getattr(thing, "__code__", None)
    if getattr(thing, "__name__", "") != "<lambda>" or code is None:
        return None
    text = "".join(inspect.findsource(code)[0])
    try:
        nodes = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Lambda)]
    except SyntaxError:  # a notebook's own commands
        return None
    spans = {(n.body.lineno, n.body.end_lineno, n.body.col_offset, n.body.end_col_offset): n for n in nodes}
    node = next((spans[span] for span in code.co_positions() if span in spans), None)
    return f"{ast.unparse(node)}\n" if node is not None else None


def keep_sources(run: Path, things: Mapping[str, object]) -> None:
    """Write down the sources of what a run was given and has no name, by what it was given as."""
    for what, thing in things.items():
        path = _kept_source(run, what)
        disk.make_folder(path.parent)
        disk.replace_file(path, source_of(thing).encode())


def given_again(run: Path, what: str, name: str, thing: object, accept: bool) -> None:
    """Check what resume was given for `what`, the thing that a run calls `name`.

    Raises: CheckpointError if nothing was given, saying what is needed, or if its source is another one.
    """
    path = _kept_source(run, what)
    if thing is None:
        where = f" Its source then is in {path}." if path.is_file() else ""
        raise CheckpointError(
            f"{run} was trained with the {what} {name}, which only lived in Python: give it again, as in "
            f"etude.resume({str(run)!r}, {what}={spoken(name)}), or put it in a file and name it as file.py:name "
            f"to make runs that the command line can resume.{where}"
        )
    if path.is_file() and path.read_text(encoding="utf-8") != source_of(thing) and not accept:
        raise CheckpointError(
            f"The source of the {what} {name} is not what {run} was trained with ({path}): give that one, or go on "
            "with this one by accept_changes=True."
        )


def _kept_source(run: Path, what: str) -> Path:
    return run / COPIES / FOLDER / f"{what}.py"
