"""Finding methods and tasks: `methods/<family>/<id>.py` holds the method `<id>`, nothing has to be listed.

Names are read from the folder, so an unknown name or `etude methods` costs no import.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from etude.core.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from etude.core.method import Method

ROOT = Path(__file__).resolve().parent.parent
SLOTS = (
    "advantages", "critics", "curricula", "experience", "filters", "objectives", "optimizers", "policies/control",
    "references",
    "regularizers", "rewards", "stages", "token_weights",
)  # fmt: skip
Kind = Literal["methods", "tasks"]


class Listing(ModuleType):
    """A folder of methods or tasks: calling it lists their ids, so that `etude.methods()` works once it is imported.

    (Python puts an imported folder `etude.methods` in the place of the function `etude.methods`.)
    """

    def __call__(self) -> list[str]:
        return sorted(files("methods" if self.__name__ == "etude.methods" else "tasks"))


@cache
def files(kind: Kind) -> dict[str, Path]:
    """File of every built-in method or task, by id."""
    found = {p.stem.replace("_", "-"): p for p in sorted((ROOT / kind).glob("*/*.py")) if p.stem[0] != "_"}
    return {k: p for k, p in found.items() if kind == "methods" or _defines(p, p.stem)}


def _defines(path: Path, name: str) -> bool:
    """Whether a module assigns `name` at its top level."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    targets = [t for s in body if isinstance(s, ast.Assign) for t in s.targets]
    return any(isinstance(t, ast.Name) and t.id == name for t in targets)


def family(kind: Kind, name: str) -> str:
    """The folder that holds it."""
    return files(kind)[name].parent.name


def summary(kind: Kind, name: str) -> str:
    """First line of its docstring, without importing it."""
    doc = ast.get_docstring(ast.parse(files(kind)[name].read_text(encoding="utf-8"))) or ""
    return doc.split("\n", 1)[0]


def docstring(kind: Kind, name: str) -> str:
    """Its whole docstring, without importing it."""
    return ast.get_docstring(ast.parse(files(kind)[name].read_text(encoding="utf-8"))) or ""


def load(kind: Kind, name: str) -> Any:
    """The object called `name`: built in, `module:attribute`, or `path/to/file.py[:attribute]`.

    Raises UnknownNameError with the closest names.
    """
    known = files(kind)
    if name in known:
        path = known[name]
        module = importlib.import_module(f"etude.{kind}.{path.parent.name}.{path.stem}")
        return getattr(module, path.stem)
    if ":" in name or name.endswith(".py"):
        return _load_outside(name)
    raise UnknownNameError(kind[:-1], name, known, f"`etude {kind}` lists them all.")


def load_attribute(reference: str) -> Any:
    """What `module:attribute` or `path/to/file.py:attribute` names. Raises ConfigError if it is not there."""
    source, _, attribute = reference.rpartition(":")
    module = import_source(source)
    if not hasattr(module, attribute):
        public = [n for n in vars(module) if not n.startswith("_")]
        raise UnknownNameError(f"attribute of {source}", attribute, public)
    return getattr(module, attribute)


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


def get_method(name: str) -> Method:
    """The method called `name`. Raises UnknownNameError with the closest names, ConfigError for another thing."""
    from etude.core.method import Method

    found = load("methods", name)
    if not isinstance(found, Method):
        raise ConfigError(f"{name} must be a Method, got {type(found).__name__}.")
    return found


def parent_of(method: Method) -> Method | None:
    """The method that this one is a difference from, in the same form: for tokens, or for control."""
    if method.parent is None:
        return None
    return get_method(method.parent).on("control" if method.policy is not None else "language")


@cache
def import_parts() -> None:
    """Import every slot folder and method file, so that all parts are known by name."""
    for folder in SLOTS:
        for path in sorted((ROOT / folder).glob("*.py")):
            package = f"etude.{folder.replace('/', '.')}"
            importlib.import_module(f"{package}.{path.stem}" if path.stem != "__init__" else package)
    for name in files("methods"):
        load("methods", name)
