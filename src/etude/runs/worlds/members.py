"""Who is trained together in control: every setting with every seed."""

from __future__ import annotations

import itertools

from etude.core.errors import ConfigError
from etude.core.fields import parse
from etude.core.method import Method
from etude.core.part import hints
from etude.core.population import Member
from etude.runs.training import Options

SEEDS = 10
"""Members of a population where nothing else is said."""


def members(method: Method, options: Options) -> list[Member]:
    """Every setting with every seed. Raises ConfigError for a field that is not there or not to be varied."""
    axes = [_axis(method, text) for text in options.population]
    if len({path for path, _ in axes}) < len(axes):
        raise ConfigError("--population names a field twice: give all its values at once, as in lr=1e-4,3e-4.")
    seeds = range(options.seed, options.seed + (options.seeds or SEEDS))
    settings = [
        dict(zip((p for p, _ in axes), values)) for values in itertools.product(*(values for _, values in axes))
    ]
    return [Member(seed, each) for each in settings for seed in seeds]


def _axis(method: Method, text: str) -> tuple[str, list[float]]:
    """'lr=1e-4,3e-4' as the path of the field and its values."""
    name, equals, values = text.partition("=")
    parts = method.parts()
    own = [slot for slot, value in method.slots().items() if isinstance(value, float)]
    inside = {path: part for path, part in parts.items() if not path.startswith("stages.")}  # all go through them
    paths = [*own, *(f"{path}.{field}" for path, part in inside.items() for field in part.fields())]
    fitting = [name] if name in paths else [f for f in paths if f.endswith(f".{name}")]
    if not equals or not values or len(fitting) != 1:
        known = ", ".join(fitting or paths)
        problem = "fits several fields" if len(fitting) > 1 else "is no FIELD=VALUE,VALUE,... of this method"
        raise ConfigError(f"--population {text!r} {problem}. Fields: {known}.")
    where, _, field = fitting[0].rpartition(".")
    hint = hints(type(parts[where] if where else method))[field]
    parsed = [parse(fitting[0], hint, v) for v in values.split(",")]
    if not all(isinstance(v, float) for v in parsed):
        raise ConfigError(
            f"{fitting[0]} cannot differ between the members of one run: only real numbers inside formulas can. "
            "Sizes and choices shape the work: compare runs instead (etude compare)."
        )
    return fitting[0], parsed
