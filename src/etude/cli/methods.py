"""`etude methods`: what there is, what each changed."""

from __future__ import annotations

import inspect
import json as json_module
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

if TYPE_CHECKING:
    from rich.console import Console

    from etude.core.method import Method

methods = App(name="methods", help="List the methods; `etude methods show ID` explains one.")


@methods.default
def list_methods(*, json: Annotated[bool, Parameter(negative=())] = False) -> None:
    """List the methods by family.

    Parameters
    ----------
    json
        Print id, title, family, row, kinds, worlds, parent, paper, changes and claims of each as JSON.
    """
    from etude.core.registry import family, files, summary

    if json:
        print(json_module.dumps([entry(name) for name in files("methods")], indent=1))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("method", "family", "what"):
        table.add_column(name, no_wrap=name != "what")
    for name in sorted(files("methods"), key=lambda n: (family("methods", n), n)):
        table.add_row(name, family("methods", name), summary("methods", name))
    Console().print(table)


def entry(name: str) -> dict[str, Any]:
    """A method as `etude methods --json` shows it."""
    from etude.core.registry import compositions, family, files
    from etude.runs.claims import claims_in

    methods = compositions(name)
    method, claims = methods[0], [_claimed(label, made) for label, made in claims_in(name).items()]
    return {
        "id": method.id, "title": method.title, "family": family("methods", name) if name in files("methods") else "",
        "row": method.row, "kinds": [type(m).__name__ for m in methods],
        "worlds": sorted({w for m in methods for w in m.worlds}), "parent": method.parent, "paper": method.paper,
        "changes": list(dict.fromkeys(path.split(".")[0] for path in _changes(method))), "claims": claims,
        "claim": next(iter(claims), None),
    }  # fmt: skip


def _claimed(name: str, method: Method) -> dict[str, Any]:
    """A claim, and what came out."""
    from etude.runs.claims import before, recorded, stale

    verdict = recorded(name)
    return {
        "name": name, "statement": method.claim.statement if method.claim else "",
        "verdict": verdict["verdict"] if verdict else before(name),
        "stale": bool(stale(name, verdict)) if verdict else before(name) is not None,
    }  # fmt: skip


def _changes(method: Method) -> dict[str, tuple[Any, Any]]:
    from etude.core.registry import parent_of

    parent = parent_of(method)
    return method.diff(parent) if parent else {}


@methods.command
def show(method: str, *, world: str | None = None) -> None:
    """What a method is: its docstring, what it changed against its parent, and every value.

    Parameters
    ----------
    method
        Its id, or file.py:name.
    world
        Only the composition for tasks of this world: language, enumerable, control.
    """
    from rich.console import Console

    from etude.core.registry import compositions, get_method

    shown = compositions(method) if world is None else [get_method(method, world)]
    console = Console(highlight=False)
    if about := _about(method):
        console.print(about, markup=False, soft_wrap=True)
    if shown[0].title:
        console.print(f"\n{shown[0].title} ({shown[0].paper})", markup=False, soft_wrap=True)
    for composition in shown:
        _show(console, composition)
    _show_claims(console, method, shown)
    _show_presets(console, method)


def _about(method: str) -> str:
    """What the file of a method says of it; of one that was written down, as a run does, nothing."""
    from etude.core.registry import docstring, files, import_source

    if method in files("methods"):
        return docstring("methods", method)
    source = method if method.endswith(".py") else method.rpartition(":")[0]
    return inspect.getdoc(import_source(source)) or "" if source else ""


def _show_claims(console: Console, method: str, shown: Sequence[Method]) -> None:
    """What its compositions claim, and what came out."""
    from etude.core.registry import files
    from etude.runs.claims import claims_in, outcome_of

    named = claims_in(method) if method in files("methods") else {method: shown[0]}
    for name, made in named.items():
        if made.claim and made in shown:
            console.print("\nClaim:", style="bold")
            console.print(f"  {made.claim.statement}  ({outcome_of(name)})", markup=False, soft_wrap=True)


def _show_presets(console: Console, method: str) -> None:
    """The tasks that it has settings for."""
    from etude.runs.presets import of_method

    if named := [preset.task for preset in of_method(method)]:
        console.print(f"\nPresets (taken by `etude train {method} --task T`): {', '.join(named)}", soft_wrap=True)


def _show(console: Console, method: Method) -> None:
    """One composition: against its parent, every value, and what keeps it from being trained as it is."""
    worlds = " and ".join(sorted(method.worlds))
    if changes := _changes(method):
        console.print(f"\nAgainst {method.parent} (for tasks of {worlds}):", style="bold")
        for path, (old, new) in changes.items():
            console.print(f"  {path:<34} {shown(old)}  ->  {shown(new)}", markup=False, soft_wrap=True)
    console.print(f"\nEvery value ({type(method).__name__}, for tasks of {worlds}):", style="bold")
    console.print(method.describe(), markup=False, soft_wrap=True)
    for sentence in method.objections():
        console.print(f"\nAs it is: {sentence}", markup=False, soft_wrap=True)


def shown(value: object) -> str:
    """A value in a diff; nothing where the other has no such field."""
    return "-" if value is None else str(value)
