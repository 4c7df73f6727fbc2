"""Write `docs/museum.md`: run every exhibit, with its fault and without; peers' columns are read as they were written.

python docs/make_museum.py
"""

from __future__ import annotations

from pathlib import Path

from etude.runs.museum import exhibits, visit
from etude.runs.museum_page import PEERS, Peer, page

PAGE = Path(__file__).parent / "museum.md"


def main() -> None:
    """Run, and write what came of it."""
    visits = {name: visit(exhibit) for name, exhibit in exhibits().items()}
    PAGE.write_text(page(visits, {name: Peer.read(name) for name in PEERS}), encoding="utf-8")
    for name, one in visits.items():
        if not one.well:
            print(f"{name}: {one.found} {one.clean}")
    print(f"{len(visits)} exhibits in {PAGE}")


if __name__ == "__main__":
    main()
