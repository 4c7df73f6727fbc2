from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from etude.rewards.function import FunctionReward


@pytest.fixture
def make(source: Path) -> Iterator[Any]:
    """A bound FunctionReward of the user's file, its process ended afterwards."""
    made: list[FunctionReward] = []

    def build(name: str, **options: Any) -> FunctionReward:
        made.append(FunctionReward(f"{source}:{name}", **{"rescore_every": 0, **options}).bind())
        return made[-1]

    yield build
    for part in made:
        part.close()
