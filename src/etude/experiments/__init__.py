"""What the claims of methods do where two runs on a bed do not say it: `experiments/<family>/<id>.py`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from etude.core.registry import family, files, module_at
from etude.evaluation.pairs import Pair

Experiment: TypeAlias = Callable[..., list[Pair]]
"""`experiment(seeds)`: both arms with each of these seeds. That of a claim with a sweep also takes `arm` and
`baseline`, the fields that tuning sets on either."""


def experiment_file(method: str) -> Path | None:
    """The file of a built-in method's own experiment, by its id; None if its claim is a comparison of runs."""
    if method not in files("methods"):
        return None
    path = Path(__file__).parent / family("methods", method) / f"{method.replace('-', '_')}.py"
    return path if path.is_file() else None


def experiment_of(method: str) -> Experiment | None:
    """What `claims run` calls for this method instead of a comparison: `experiment` of its file."""
    path = experiment_file(method)
    if path is None:
        return None
    experiment: Experiment = module_at(path).experiment
    return experiment
