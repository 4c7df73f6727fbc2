"""The page about beds shows the recipe that is there."""

from __future__ import annotations

from pathlib import Path

from etude.runs.beds import beds

PAGE = Path(__file__).parents[2] / "docs" / "make-a-bed.md"


def test_the_page_shows_the_recipe() -> None:
    assert f"```toml\n{beds()['enumerable/twin'].read_text(encoding='utf-8')}```" in PAGE.read_text(encoding="utf-8")
