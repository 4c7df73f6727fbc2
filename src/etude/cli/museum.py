"""`etude museum`: publicly reported faults that said nothing, brought back to see what etude does about them."""

from __future__ import annotations

import json as json_module
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

if TYPE_CHECKING:
    from etude.evaluation.exhibits import Exhibit
    from etude.runs.museum import Visit

museum = App(name="museum", help="Faults that others reported, and what etude does; `run ID` shows one.")


@museum.default
def list_exhibits(*, json: Annotated[bool, Parameter(negative=())] = False) -> None:
    """Every exhibit: its report, and what went wrong there.

    Parameters
    ----------
    json
        As JSON: id, kind, report, title, says, mechanism, and why it is missed, if it is.
    """
    from etude.runs.museum import exhibits

    found = exhibits().values()
    if json:
        print(json_module.dumps([_entry(e) for e in found], indent=1))
        return
    for e in found:
        print(f"{e.id:<30}{e.kind:<15}{e.report.thread}")
        print(f"    {e.says}")


@museum.command
def run(
    *names: str,
    all: Annotated[bool, Parameter(negative=())] = False,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Bring faults back and say what came of each: stopped, said, visible in a metric, or silent.

    The exit code is 1 if one is silent that is not a listed miss, or if something is said without the fault.

    Parameters
    ----------
    names
        Ids of exhibits (`etude museum`).
    all
        Every exhibit.
    json
        As JSON: what is listed, with verdict, answer, step, other sentences, and what was said without the fault.
    """
    from etude.core.errors import ConfigError
    from etude.runs.museum import chosen, counted, exhibits, visit

    if bool(names) == all:
        raise ConfigError("Say which exhibits to run, or --all: etude museum run one-reward-for-all.")
    visits = []
    for exhibit in exhibits().values() if all else chosen(names):
        visits.append(visit(exhibit))
        if not json:
            _show(visits[-1], whole=not all)
    if json:
        print(json_module.dumps([_seen(v) for v in visits], indent=1))
    elif len(visits) > 1:
        print("\n" + ", ".join(f"{n} {verdict}" for verdict, n in counted(visits).items()))
    if not all_well(visits):
        raise SystemExit(1)


def all_well(visits: list[Visit]) -> bool:
    """Whether each fault was answered or is a listed miss, and no clean run said anything."""
    return all(v.well for v in visits)


def _show(one: Visit, whole: bool) -> None:
    e, found = one.exhibit, one.found
    if whole:
        print(f"{e.report.thread}: {e.report.title}\n  {e.report.address}\n{e.says}\nHere: {e.mechanism}")
    print(f"{e.id:<30}{found.verdict:<21}{found.answer}")
    for sentence in (e.miss, *found.other) if found.verdict == "silent" else ():
        print(f"    {sentence}")
    for sentence in one.clean:
        print(f"    said without the fault: {sentence}")


def _entry(e: Exhibit) -> dict[str, Any]:
    return {
        "id": e.id, "kind": e.kind, "report": e.report.address, "title": e.report.title, "says": e.says,
        "mechanism": e.mechanism, "miss": e.miss or None,
    }  # fmt: skip


def _seen(one: Visit) -> dict[str, Any]:
    found = one.found
    told = {"verdict": found.verdict, "answer": found.answer, "step": found.step, "other": list(found.other)}
    return {**_entry(one.exhibit), **told, "clean": list(one.clean), "well": one.well}
