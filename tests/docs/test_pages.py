"""The generated pages say what the code says, and links between the pages lead somewhere."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"])
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def generated(folder: Path) -> dict[str, str]:
    """The text of every generated page, by path."""
    found = [*(folder / "methods").glob("*.md"), folder / "claims.md", folder / "presets.md", folder / "studies.md"]
    return {str(p.relative_to(folder)): p.read_text(encoding="utf-8") for p in found if p.is_file()}


@pytest.mark.slow
def test_generated_pages_are_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made again, they are what is stored."""
    monkeypatch.setattr(sys, "argv", ["make_methods.py", "--out", str(tmp_path)])
    runpy.run_path(str(DOCS / "make_methods.py"), run_name="__main__")
    fresh, stored = generated(tmp_path), generated(DOCS)
    stale = sorted(k for k in {*fresh, *stored} if fresh.get(k) != stored.get(k))
    assert not stale, f"These pages differ from the code: {', '.join(stale)}. Write them again with `make docs`."


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link names a file that is there."""
    links = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing, f"{page.relative_to(ROOT)} links to what is not there: {', '.join(missing)}"


@pytest.mark.parametrize(("index", "but"), [(DOCS / "README.md", set()), (ROOT / "README.md", {DOCS / "README.md"})])
def test_a_page_is_found_from_the_lists_of_pages(index: Path, but: set[Path]) -> None:
    linked = {(index.parent / link).resolve() for link in LINK.findall(index.read_text(encoding="utf-8"))}
    lost = {*DOCS.glob("*.md")} - {index} - but - linked
    assert not lost, f"{index.relative_to(ROOT)} does not name {', '.join(sorted(page.name for page in lost))}."
