"""`etude methods`: what there is, what each changed."""

from __future__ import annotations

import json as json_module
from typing import Annotated, Any

from cyclopts import App, Parameter

methods = App(name="methods", help="List the methods; `etude methods show ID` explains one.")


@methods.default
def list_methods(*, json: Annotated[bool, Parameter(negative=())] = False) -> None:
    """List the methods by family.

    Parameters
    ----------
    json
        Print id, title, family, kind, parent, paper, changes and claim of each as JSON.
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
    from etude.core.registry import family, files, get_method, parent_of
    from etude.evaluation.claims import recorded

    method = get_method(name)
    parent = parent_of(method)
    changes = list(dict.fromkeys(path.split(".")[0] for path in method.diff(parent))) if parent else []
    claim = None
    if method.claim is not None:
        found = recorded(name)
        claim = {"statement": method.claim.statement, "verdict": found["verdict"] if found else None}
    return {
        "id": method.id, "title": method.title, "family": family("methods", name) if name in files("methods") else "",
        "kind": method.kind, "parent": method.parent, "paper": method.paper, "changes": changes, "claim": claim,
    }  # fmt: skip


@methods.command
def show(method: str) -> None:
    """What a method is: its docstring, what it changed against its parent, and every value.

    Parameters
    ----------
    method
        Its id, or file.py:name.
    """
    from rich.console import Console

    from etude.core.registry import docstring, files, get_method, parent_of

    found = get_method(method)
    console = Console(highlight=False)
    if method in files("methods"):
        console.print(docstring("methods", method), markup=False, soft_wrap=True)
    if found.title:
        console.print(f"\n{found.title} ({found.paper})", markup=False, soft_wrap=True)
    if (parent := parent_of(found)) is not None:
        console.print(f"\nAgainst {parent.id}:", style="bold")
        for path, (old, new) in found.diff(parent).items():
            console.print(f"  {path:<34} {shown(old)}  ->  {shown(new)}", markup=False, soft_wrap=True)
    console.print("\nEvery value:", style="bold")
    console.print(found.describe(), markup=False, soft_wrap=True)
    if found.claim:
        from etude.evaluation.claims import recorded

        verdict = recorded(method)
        console.print("\nClaim:", style="bold")
        outcome = verdict["verdict"] if verdict else "not run yet"
        console.print(f"  {found.claim.statement}  ({outcome})", markup=False, soft_wrap=True)


def shown(value: Any) -> str:
    """A value in a diff; nothing where the other has no such field."""
    return "-" if value is None else str(value)
