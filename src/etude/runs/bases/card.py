"""What is said about a base model: the table of its scores and the README.md beside its weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from etude.runs.bases.base import Base


def show(base: Base, scores: Mapping[str, Any]) -> None:
    """Print the table on the terminal."""
    from rich.console import Console
    from rich.table import Table

    shown = Table("task and split", *base.columns)
    for name, score in scores.items():
        shown.add_row(name, *base.cells(score))
    Console().print(shown)


def write_card(base: Base, folder: Path, seed: int, steps: int, measured: Mapping[str, Any]) -> None:
    """Write README.md."""
    rows = "\n".join(f"| {' | '.join((name, *base.cells(score)))} |" for name, score in measured["scores"].items())
    remark = base.remark(measured["scores"])
    text = base.card.format(seed=seed, steps=steps, rows=rows, remark=remark, **{**measured, "scores": None})
    (folder / "README.md").write_text(text, encoding="utf-8")
