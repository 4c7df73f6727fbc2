"""What arms of an experiment are made of, and what their numbers depend on."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from etude.core.edit import stack
from etude.core.errors import EtudeError
from etude.core.method import META, Method
from etude.core.registry import ROOT, get_method
from etude.core.worlds import World
from etude.runs.code import code_of, text_hash


def state() -> str:
    """A name for what numbers depend on besides a recipe: code, versions of libraries, processor and kernels.

    Runs are only paired with runs that could have been equal.
    """
    from etude.runtime.environment import record

    here = record(0)
    return text_hash(json.dumps([_library(), here["versions"], here["processor"], here["kernels"]]))


@cache
def _library() -> str:
    """A name for the code that runs rest on, whatever its comments say."""
    names = [path.relative_to(ROOT).as_posix() for path in sorted(ROOT.rglob("*.py"))]
    return text_hash("\n".join(name + code_of(ROOT / name) for name in names if not name.startswith(ELSEWHERE)))


ELSEWHERE = (
    "cli", "board", "experiments", "methods", "starts", "runs/arms.py", "runs/beds.py", "runs/cards.py",
    "runs/claim_runs.py", "runs/claims.py", "runs/code.py", "runs/contest.py", "runs/frontiers.py", "runs/looks.py",
    "runs/measuring.py", "runs/plans.py", "runs/presets.py", "runs/studies.py", "runs/study_table.py", "runs/tuning.py",
    "evaluation/frontiers.py", "evaluation/gates.py", "evaluation/learning.py", "evaluation/pairs.py",
    "evaluation/plots.py", "evaluation/verdicts.py", "core/claims.py",
)  # fmt: skip
"""What of the library no number of a run rests on; methods count one by one."""


def composition(arm: str | Method, world: World) -> str:
    """A name for all that an arm is made of: every part with its values, and the code of its parts.

    Of one that names other methods, a recipe, also of what these are made of.
    """
    arm = composed(arm, world)
    inside = arm.made_of()
    modules = sorted({type(part).__module__ for each in (arm, *inside) for part in each.parts().values()})
    sources = [code_of(Path(str(sys.modules[module].__file__))) for module in modules]
    return text_hash(json.dumps([arm.to_json(), modules, sources, *(each.to_json() for each in inside)]))[:8]


def made_of(arm: str | Method, world: World) -> list[dict[str, Any]]:
    """All parts of an arm and their values as JSON, and those of the methods that it names."""
    arm = composed(arm, world)
    return [_values(each) for each in (arm, *arm.made_of())]


def still_made_of(before: Sequence[Mapping[str, Any]], arm: str | Method, world: World) -> bool:
    """Whether an arm has the parts and values that `made_of` said it had: fields that came since are at their default.

    What was written then is read by the present code, however that is written.
    """
    try:
        return [_values(Method.from_json(each)) for each in before] == made_of(arm, world)
    except EtudeError:  # a part or a field that is gone
        return False


def composed(arm: str | Method, world: World) -> Method:
    """An arm as a method: one of that name, with parts stacked by '+', or itself."""
    if isinstance(arm, Method):
        return arm
    name, *parts = arm.split("+")
    return stack(get_method(name, world), parts)


def _values(method: Method) -> dict[str, Any]:
    return {k: v for k, v in method.to_json().items() if k == "id" or k not in META}
