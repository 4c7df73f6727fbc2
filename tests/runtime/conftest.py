"""Fixtures of the runtime tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for `toyloop`, whatever folder pytest was started in


@pytest.fixture
def still_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that stands still, so that runs can be compared byte by byte."""
    monkeypatch.setattr("etude.runtime.run.monotonic", lambda: 1000.0)
