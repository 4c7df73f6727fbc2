"""Finding methods and tasks: `methods/<family>/<id>.py` holds the method `<id>`, nothing has to be listed.

A large method is a folder, `methods/<family>/<id>/`: the composition in `__init__.py`, its parts in files beside it.

Names are read from the folder, so an unknown name or `etude methods` costs no import.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import re
import sys
import traceback
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from etude.core.errors import ConfigError, UnknownNameError
from etude.core.rooms import part_rooms

if TYPE_CHECKING:
    from etude.core.method import Method
    from etude.core.worlds import World

T = TypeVar("T")
ROOT = Path(__file__).resolve().parent.parent
_HERE = str(Path(__file__).resolve())
Shelf = Literal["methods", "tasks"]
METHOD = re.compile(r'^(\w+) = [\w.]+\(\s*id="([^"]+)"', re.MULTILINE)
"""A method at the top level of a file: the variable, and the id that comes first."""


class Listing(ModuleType):
    """A folder of methods or tasks: calling it lists their ids, so that `etude.methods()` works once it is imported.

    (Python puts an imported folder `etude.methods` in the place of the function `etude.methods`.)
    """

    def __call__(self) -> list[str]:
        return sorted(files("methods" if self.__name__ == "etude.methods" else "tasks"))


@cache
def files(shelf: Shelf) -> dict[str, Path]:
    """File of every built-in method or task, by id. A file of methods may hold several, and several of one id."""
    paths = [p for p in sorted((ROOT / shelf).glob("*/*.py")) if p.stem[0] != "_"]
    if shelf == "methods":
        paths = sorted([*paths, *(ROOT / shelf).glob("*/*/__init__.py")])
        return {name: path for path in paths for name in declared(path)}
    return {p.stem.replace("_", "-"): p for p in paths if _defines(p, p.stem)}


@cache
def declared(path: Path) -> dict[str, list[str]]:
    """Variables of the methods that a file declares, by id, in order; read from its text, without importing it."""
    variables: dict[str, list[str]] = {}
    for variable, name in METHOD.findall(path.read_text(encoding="utf-8")):
        variables.setdefault(name, []).append(variable)
    return variables


def _defines(path: Path, name: str) -> bool:
    """Whether a module assigns `name` at its top level."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    targets = [t for s in body if isinstance(s, ast.Assign) for t in s.targets]
    return any(isinstance(t, ast.Name) and t.id == name for t in targets)


def family(shelf: Shelf, name: str) -> str:
    """The folder that holds it."""
    return files(shelf)[name].relative_to(ROOT / shelf).parts[0]


def summary(shelf: Shelf, name: str) -> str:
    """First line of its docstring, without importing it."""
    return docstring(shelf, name).split("\n", 1)[0]


def docstring(shelf: Shelf, name: str) -> str:
    """Its whole docstring, without importing it."""
    return ast.get_docstring(ast.parse(files(shelf)[name].read_text(encoding="utf-8"))) or ""


def load_task(name: str) -> Any:
    """What is called `name`: a built-in task, or what `module:attribute` or `path/to/file.py[:attribute]` names.

    Raises UnknownNameError with the closest names.
    """
    known = files("tasks")
    if name in known:
        return getattr(module_at(known[name]), known[name].stem)
    if ":" in name or name.endswith(".py"):
        return _load_outside(name)
    raise UnknownNameError("task", name, known, "`etude tasks` lists them all.")


def module_at(path: Path) -> ModuleType:
    """The module of a file of the library; a folder's is its `__init__.py`."""
    whole = path.parent if path.stem == "__init__" else path.with_suffix("")
    return importlib.import_module(".".join(("etude", *whole.relative_to(ROOT).parts)))


def load_attribute(reference: str) -> Any:
    """What `module:attribute` or `path/to/file.py:attribute` names. Raises ConfigError if it is not there."""
    source, _, attribute = reference.rpartition(":")
    module = import_source(source)
    if not hasattr(module, attribute):
        public = [n for n in vars(module) if not n.startswith("_")]
        raise UnknownNameError(f"attribute of {source}", attribute, public)
    return getattr(module, attribute)


def load_class(reference: str, base: type[T], what: str) -> type[T]:
    """The class that `module:attribute` or `file.py:attribute` names. Raises ConfigError if it is not `what`."""
    thing = load_attribute(reference)
    if not (isinstance(thing, type) and issubclass(thing, base)):
        raise ConfigError(f"{reference} must be {what}, got {thing!r}.")
    return thing


def reference(thing: Any) -> str | None:
    """'module:name' if importing that gives this very class or function. Importing a running script would run it again.

    >>> reference(Listing), reference(lambda: 1)
    ('etude.core.registry:Listing', None)
    """
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", "")
    home = sys.modules.get(module or "")
    if module == "__main__" or getattr(home, name, None) is not thing or getattr(home, "__spec__", None) is None:
        return None
    return f"{module}:{name}"


def _load_outside(name: str) -> Any:
    if name.endswith(".py"):
        return load_attribute(f"{name}:{Path(name).stem}")
    return load_attribute(name)


def import_source(source: str) -> ModuleType:
    """Import a module by dotted name or by file path; the current folder counts as importable."""
    try:
        if source.endswith(".py"):
            return _import_file(Path(source))
        if str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        return importlib.import_module(source)
    except ModuleNotFoundError as error:
        raise ConfigError(f"Cannot import {source!r}: {error}. Name a module on the path or a .py file.") from error
    except SyntaxError as error:
        place = f"{error.filename}:{error.lineno}:{error.offset}"
        raise ConfigError(f"Cannot import {source!r}: {place}: {error.msg}: {(error.text or '').strip()!r}.") from None
    except ImportError as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(("<", _HERE))]
        place = f" ({frames[-1].filename}, line {frames[-1].lineno}: {frames[-1].line})" if frames else ""
        raise ConfigError(f"Cannot import {source!r}: {error}{place}.") from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"There is no file {path}.")
    name = path.stem
    if name in sys.stdlib_module_names:
        raise ConfigError(f"{path} has the name of a module of Python's own, which it would replace; rename it.")
    written, known = path.stat().st_mtime_ns, sys.modules.get(name)
    same = known is not None and getattr(known, "__file__", None) == str(path.resolve())
    if known is not None and same and vars(known).setdefault("__etude_written__", written) == written:
        return known
    if str(path.resolve().parent) not in sys.path:  # so that pickling by name and its own imports work
        sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    vars(module)["__etude_written__"] = written  # edited since, it is another module
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]  # a half-made module must not pass for a whole one the next time
        raise
    return module


def compositions(name: str) -> list[Method]:
    """Every method called `name`, one for each kind: built in, `module:attribute`, or `path/to/file.py[:attribute]`.

    The `method.json` of a run is one too.

    Raises UnknownNameError with the closest names, ConfigError for another thing.
    """
    from etude.core.method import Method

    known = files("methods")
    if name in known:
        module = module_at(known[name])
        methods = [getattr(module, variable) for variable in declared(known[name])[name]]
    elif name.endswith(".json"):
        methods = [_written(Path(name))]
    elif ":" in name or name.endswith(".py"):
        methods = [_load_outside(name)]
    else:
        raise UnknownNameError("method", name, known, "`etude methods` lists them all.")
    for each in methods:
        if not isinstance(each, Method):
            raise ConfigError(f"{name} must be a Method, got {type(each).__name__}.")
    return methods


def _written(path: Path) -> Method:
    from etude.core.method import Method

    try:
        return Method.from_json(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise ConfigError(f"There is no file {path}.") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path} is no method: {error}.") from None


def get_method(name: str, world: World | str | None = None) -> Method:
    """The method called `name`; where it has several compositions the one for `world`, the first if none is given.

    Raises: UnknownNameError with the closest names, ConfigError for another thing or a world that it is not made for.
    """
    methods = compositions(name)
    if world is None:
        return methods[0]
    fitting = [m for m in methods if world in m.worlds]
    if not fitting:
        raise ConfigError(not_for(name, methods, world))
    return fitting[0]


def not_for(name: str, methods: list[Method], world: str) -> str:
    """Why a method is none for a world, and which are."""
    own = " and ".join(sorted({w for m in methods for w in m.worlds}))
    others = [n for n in sorted(files("methods")) if any(world in m.worlds for m in compositions(n))]
    more = f" and {len(others) - 6} more (`etude methods` lists all)" if len(others) > 6 else ""
    logs = any(getattr(m.slots().get("experience"), "reads_logs", False) for m in methods)
    data = " It learns from logs: give --data, and --task ENVIRONMENT to play in." if logs else ""
    return (
        f"{name} learns in tasks of {own}, and this is one of {world}.{data} There fit: {', '.join(others[:6])}{more}."
    )


def parent_of(method: Method) -> Method | None:
    """The method of the same kind that this one is written as the difference from."""
    if method.parent is None:
        return None
    parent = next((m for m in compositions(method.parent) if type(m) is type(method)), None)
    if parent is None:
        raise ConfigError(f"{method.id} names {method.parent} as its parent, which is of another kind.")
    return parent


@cache
def import_parts() -> None:
    """Import every room of parts and every method file, so that all parts are known by name."""
    for path in sorted(p for room in part_rooms() for p in part_files(room)):
        module_at(path)
    for path in sorted(set(files("methods").values())):
        module_at(path)


def part_files(room: str) -> list[Path]:
    """Files of a room that may hold parts. Those of policies are in its folders: its own files load models."""
    return list((ROOT / room).glob("*/*.py" if room == "policies" else "*.py"))
