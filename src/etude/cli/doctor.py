"""`etude doctor`: what there is on this machine, and what would have to be installed for what."""

from __future__ import annotations

import json as json_module
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

if TYPE_CHECKING:
    from etude.runs.doctor import Health


def doctor(*, json: Annotated[bool, Parameter(negative=())] = False) -> None:
    """Versions, processor, devices, extras and disk: what there is, what it promises, what to install for what.

    The exit code is 1 if something that etude needs is missing.

    Parameters
    ----------
    json
        Print what was found as JSON.
    """
    from etude.runs.doctor import examine

    health = examine()
    if json:
        print(json_module.dumps(health.to_json(), indent=1))
    else:
        _show(health)
    if not all(p.fits for p in health.packages):
        raise SystemExit(1)


def _show(health: Health) -> None:
    from rich.console import Console
    from rich.table import Table

    here = health.here
    said = "bit for bit" if health.exact else "but for their last digits"
    rows = {
        "versions": ", ".join(f"{name} {v}" for name, v in here["versions"].items() if v),
        "system": f"{here['platform']}, {here['memory_bytes'] / 1e9:.0f} GB of memory",
        "processor": f"{here['processor']}, {here['cores']} cores",
        "products": health.blas,
        "float32": health.speeds,
        "populations": f"members equal their own runs {said}",
        "devices": ", ".join(here["devices"]) or "cpu",
        "disk": f"{health.free_bytes / 1e9:.0f} GB free",
        "hub": health.hub,
        "programs": health.programs,
    }
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, text in rows.items():
        table.add_row(name, text)
    table.add_row("", "")
    for extra in health.extras:
        lacks = f"pip install 'etude[{extra.name}]'  (lacks {', '.join(extra.missing)})" if extra.missing else "there"
        table.add_row(extra.name, f"{extra.what}: {lacks}")
    console = Console(highlight=False, markup=False)
    console.print(table)
    console.print("\n" + ("\n".join(health.sentences) or "All is well."), soft_wrap=True)
