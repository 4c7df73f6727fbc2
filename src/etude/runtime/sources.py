"""What a run is made from, by name: recorded when it starts, found again by every verb.

A run names things that lie outside of its folder: `hard_first.py:hard_first`, `data.jsonl`, `models/mine`. When it
starts, each name is written to `inputs.json` with its absolute path and fingerprint (`fingerprints.py`), and the Python
files, with those of the user's own that they import, are copied to `sources/`. From then on:

- **resume** refuses inputs whose content is another than recorded, naming them, or goes on with them if it is told to:
  then the new fingerprints and copies are recorded, the old copies are kept in `sources-until-step-N/`, and `accepted`
  in `inputs.json` says at which step what changed;
- **resume, evaluate, export** take the Python files where they were, whatever folder they are called in. If one is gone
  the copies serve. Evaluate and export take the copies also if one was changed, and say so: a policy is built as it was
  trained. Data and models are not copied.

So a run folder may hold Python, and opening it may run that: open those of people whose programs you would run. It is
said when copies are taken, and a copy that is not as it was recorded is refused.

A name in `config.json` and `method.json` stays as it was typed; `opened` puts in its place where it is found now.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from etude.core.errors import CheckpointError
from etude.core.method import Method
from etude.core.part import Part, hints
from etude.core.registry import files, import_source
from etude.core.task import Task
from etude.runtime import checkpoints, disk, environment, fingerprints

FILE = "inputs.json"
COPIES = "sources"


@dataclass(frozen=True)
class Input:
    """A name that a run uses, and what stood behind it.

    Args:
        path: absolute; empty for a model of the hub.
        module: of a Python source, what it is imported as; empty for data and models.
        files: fingerprints by name inside `path`; a Python source's are in `Inputs.python`.
    """

    path: str = ""
    module: str = ""
    files: dict[str, str] = field(default_factory=dict)

    def changed(self, name: str) -> str:
        """What is not as recorded, in words; empty if nothing is, or if it is gone, which whoever reads it will say."""
        if self.module or not self.files or (self.path and not Path(self.path).exists()):
            return ""
        now = fingerprints.content(Path(self.path)) if self.path else fingerprints.commit(name) or self.files
        which = [k for k in sorted({*self.files, *now}) if self.files.get(k) != now.get(k)]
        inside = f" ({', '.join(which[:3])}{', ...' * (len(which) > 3)})" if which and "" not in which else ""
        return f"{self.path or name}{inside}" if which else ""


@dataclass(frozen=True)
class Inputs:
    """All that a run is made from.

    Args:
        names: by how they were typed.
        python: files of the user's own Python by module, as a path: where they are, and their fingerprints.
        accepted: steps at which a resumed run went on with changed inputs, and which.
    """

    names: dict[str, Input] = field(default_factory=dict)
    python: dict[str, tuple[str, str]] = field(default_factory=dict)
    accepted: list[dict[str, Any]] = field(default_factory=list)

    @staticmethod
    def load(run: Path) -> Inputs:
        """Those of a run. Raises CheckpointError if the file cannot be read."""
        recorded = checkpoints.load_json(run / FILE)
        try:
            names = {k: Input(**v) for k, v in recorded["names"].items()}
            python = {checkpoints.inside(k): (str(v[0]), str(v[1])) for k, v in recorded["python"].items()}
            return Inputs(names, python, list(recorded["accepted"]))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise CheckpointError(f"{run / FILE} is not what a run writes ({error}). Restore it from a copy.") from None

    def changed(self) -> list[str]:
        """Every input that is there and has another content."""
        edited = [p for p, was in self.python.values() if Path(p).is_file() and fingerprints.digest(Path(p)) != was]
        return [*edited, *filter(None, (entry.changed(name) for name, entry in self.names.items()))]

    @property
    def missing(self) -> list[str]:
        """Python files that are not where they were."""
        return [p for p, _ in self.python.values() if not Path(p).is_file()]

    @property
    def digests(self) -> dict[str, Any]:
        """All fingerprints, whatever folder things lie in."""
        return {**{k: v.files for k, v in self.names.items()}, **{k: v[1] for k, v in self.python.items()}}


def gather(code: Iterable[str], data: Iterable[str] = (), model: str = "") -> Inputs:
    """The inputs among these texts, with their fingerprints as they are now.

    Args:
        code: what may name Python: 'file.py', 'file.py:name' or 'module:name'.
        data: what may name Python, a file or a folder.
        model: a folder or a name of the hub, if any.

    Raises: ConfigError for two files that would be the same module.
    """
    names: dict[str, Input] = {}
    python: dict[str, Path] = {}
    texts, paths = list(dict.fromkeys([*code, *data])), {*data}
    for text in texts:
        if source := fingerprints.python(text):
            names[text] = Input(str(source[1]), source[0])
            for place, file in fingerprints.modules(*source).items():
                fingerprints.add(python, place, file)
        elif text in paths and _exists(text):
            names[text] = _data(Path(text).resolve())
    if model:
        here = _exists(model)
        names[model] = _data(Path(model).resolve()) if here else Input(files=fingerprints.commit(model))
    return Inputs(names, {k: (str(p), fingerprints.digest(p)) for k, p in sorted(python.items())})


def named(method: Method, task: Task) -> tuple[list[str], list[str]]:
    """What the parts of a method and a task name: their classes that are not etude's, and the text in their fields."""
    parts: list[Part] = [*method.parts().values(), task]
    kinds = [type(method), *map(type, parts)]
    classes = [f"{c.__module__}:{c.__qualname__}" for c in kinds if not c.__module__.startswith("etude.")]
    texts = [v for p in parts for k, v in p.fields().items() if isinstance(v, str) and hints(type(p))[k] in _TEXT]
    tools = getattr(task, "tools", None)
    return classes, [*texts, *(tools.sources if tools is not None else ())]


_TEXT = (str, str | None)


def of_run(method: Method, task: Task, config: Mapping[str, Any], code: Iterable[str], model: str) -> Inputs:
    """The inputs of a run that is about to start.

    Args:
        config: of the run: its task; rewards are parts of the method.
        code: what else was given that may name Python.
        model: the model that a language run starts from, empty if it comes with etude.
    """
    classes, texts = named(method, task)
    return gather([*code, *classes], [t for t in (str(config["task"]), *texts) if t not in files("tasks")], model)


def key(texts: Iterable[str], code: Iterable[str], model: str) -> list[Any]:
    """What the numbers of a run with these inputs depend on besides their names: contents, and etude's version."""
    inputs = gather(code, [t for t in texts if t not in files("tasks")], model)
    return [environment.version("etude"), inputs.digests]


def record(run: Path, inputs: Inputs) -> None:
    """Write a run's inputs down, with copies of the Python files; copies of files that are gone stay."""
    for place, (path, _) in inputs.python.items():
        if Path(path).is_file():
            disk.make_folder((run / COPIES / place).parent)
            disk.replace_file(run / COPIES / place, Path(path).read_bytes())
    written = {"names": {k: asdict(v) for k, v in inputs.names.items()}, "python": inputs.python}
    disk.replace_file(run / FILE, json.dumps({**written, "accepted": inputs.accepted}, indent=1).encode())


def check(run: Path, step: int, accept: bool = False) -> list[str]:
    """Sentences about the inputs of a run that is to go on from `step`; with `accept`, changed ones are recorded.

    Raises: CheckpointError, naming what changed, unless that is accepted.
    """
    if not (run / FILE).is_file():  # a run of an etude that did not record them
        return []
    inputs = Inputs.load(run)
    changed = inputs.changed()
    if changed and not accept:
        kept = f" ({run / COPIES} has the Python files as they were)" if inputs.python else ""
        raise CheckpointError(
            f"Since {run} was started, {_list(changed)} changed. Put back what it was trained with{kept}, or go on "
            f"with what is there now, and have the run record it: etude train --resume {run} --accept-changes."
        )
    if not changed:
        return []
    now = _again(inputs)
    if inputs.python:
        _set_aside(run, step)
    record(run, replace(now, accepted=[*inputs.accepted, {"step": step, "changed": changed}]))
    return [f"From step {step} on with changed inputs: {_list(changed)}."]


def _again(inputs: Inputs) -> Inputs:
    """The same names with the content that they have now; what is gone, as it was."""
    _forget(inputs.python)
    names, python = {}, {k: v for k, v in inputs.python.items() if not Path(v[0]).is_file()}
    for name, entry in inputs.names.items():
        path = Path(entry.path)
        there = path.exists() if entry.path else bool(entry.files)
        if entry.module and there:
            now = fingerprints.modules(entry.module, path)
            python |= {k: (str(p), fingerprints.digest(p)) for k, p in now.items()}
        elif there:
            entry = _data(path) if entry.path else Input(files=fingerprints.commit(name) or entry.files)
        names[name] = entry
    return Inputs(names, dict(sorted(python.items())), inputs.accepted)


def _set_aside(run: Path, step: int) -> None:
    """Keep the copies of what the run was trained with until now under another name, and go on from them."""
    import shutil

    aside, n = run / f"{COPIES}-until-step-{step}", 1
    while aside.exists():
        n += 1
        aside = run / f"{COPIES}-until-step-{step}-{n}"
    shutil.copytree(run / COPIES, aside)


@dataclass(frozen=True)
class Opened:
    """A run's config and method as JSON values, with every name leading to what it means now."""

    config: dict[str, Any]
    method: dict[str, Any]
    notes: list[str]


def opened(run: Path) -> Opened:
    """Read a run's `config.json` and `method.json`, and make its own modules importable, from any working directory."""
    config, method = (checkpoints.load_json(run / name) for name in ("config.json", "method.json"))
    if not (run / FILE).is_file():
        for source in config.get("sources", ()):
            import_source(source)
        return Opened(config, method, [])
    inputs = Inputs.load(run)
    changed = inputs.changed()
    copies = bool(inputs.missing) or any(path in changed for path, _ in inputs.python.values())
    notes = [f"{_list(changed)} changed since {run} was trained."] if changed else []
    if copies:
        notes.append(f"Its Python files are taken from {run / COPIES}.")
        _check_copies(run, inputs)
    places = {k: (run / COPIES / k).resolve() if copies else Path(p) for k, (p, _) in inputs.python.items()}
    _make_importable(places)
    located = {name: _found(name, entry, places) for name, entry in inputs.names.items()}
    return Opened(_put(config, located), _put(method, located), notes)


def _check_copies(run: Path, inputs: Inputs) -> None:
    """Raise CheckpointError if a copy is not what was recorded."""
    for place, (_, was) in inputs.python.items():
        copy = run / COPIES / place
        if not copy.is_file() or fingerprints.digest(copy) != was:
            raise CheckpointError(
                f"{copy} is not the file that the run was trained with, and neither is the one that it was copied "
                "from. Restore one of them."
            )


def _make_importable(places: Mapping[str, Path]) -> None:
    """Let each module be imported from its place, and forget it if it was imported from another one."""
    for place, path in places.items():
        module = sys.modules.get(fingerprints.module_of(place))
        if module is not None and Path(str(getattr(module, "__file__", ""))).resolve() != path:
            del sys.modules[fingerprints.module_of(place)]
    for root in dict.fromkeys(str(path.parents[place.count("/")]) for place, path in places.items()):
        sys.path[:] = [root, *(p for p in sys.path if p != root)]


def _forget(places: Iterable[str]) -> None:
    """Let modules be imported again."""
    for place in places:
        sys.modules.pop(fingerprints.module_of(place), None)


def _found(name: str, entry: Input, places: Mapping[str, Path]) -> str:
    """What to call an input: as before where that means the same, else by its path; a module keeps its name."""
    source, colon, attribute = name.rpartition(":") if entry.module else (name, "", "")
    source = source or name
    if not entry.path or (entry.module and not name.endswith(".py") and not source.endswith(".py")):
        return name
    place = places[f"{entry.module}.py"] if entry.module else Path(entry.path)
    if Path(source).resolve() == place:
        return name
    return f"{place}{colon}{attribute}" if colon else str(place)


def _put(value: object, names: Mapping[str, str]) -> Any:
    """JSON values with each name replaced by what it is found under, also on either side of a '='."""
    if isinstance(value, dict):
        return {k: _put(v, names) for k, v in value.items()}
    if isinstance(value, list):
        return [_put(v, names) for v in value]
    if not isinstance(value, str):
        return value
    before, equals, after = value.partition("=")
    return names.get(value, names.get(before, before) + equals + names.get(after, after))


def _data(path: Path) -> Input:
    return Input(str(path), files=fingerprints.content(path))


def _exists(text: str) -> bool:
    try:
        return bool(text) and Path(text).exists()
    except (OSError, ValueError):  # too long, or no name of a file at all
        return False


def _list(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
