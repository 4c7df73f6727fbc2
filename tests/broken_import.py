"""A module whose import fails, that tests name by its file."""

from pathlib import Nothing  # type: ignore[attr-defined]  # which is the fault

X = Nothing
