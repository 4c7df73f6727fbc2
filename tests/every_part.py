"""All parts that the library has for others, whichever of its modules other tests have imported."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import walk_packages

import etude
from etude.core.part import Part, part_classes


@cache
def every_part() -> dict[str, type[Part]]:
    """By name, sorted, of every module: tests that run side by side must be the same ones in each process."""
    for module in walk_packages(etude.__path__, "etude."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    own = ("etude.experiments.", "etude.starts.")  # of one claim each, and what `etude new` writes
    return {name: cls for name, cls in part_classes().items() if not cls.__module__.startswith(own)}
