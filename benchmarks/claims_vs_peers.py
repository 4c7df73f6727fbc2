"""Claims that another library can run too, done again with that library's own code, and judged by the same rules.

    python benchmarks/claims_vs_peers.py run [CLAIM ...] [--most 6]
    python benchmarks/claims_vs_peers.py page

TRL's trainers and SB3's algorithms train both arms of a claim on its bed: the same start, problems, rewards, budgets
and seeds. Their weights are scored by etude's evaluation on the bed's fixed test, and the pairs are judged as etude's
own. `peers/records/CLAIM.json` keeps each library's pairs and what follows from them; the page is docs/peers.md. Runs
are kept in runs/peers and used again, so what was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from _arms import HERE
from peers.cases import Case, cases
from peers.collect import own_pairs, peer_pairs
from peers.jobs import versions, words_of
from peers.page import page, stored
from peers.verdicts import side

from etude.evaluation.verdicts import LOOKS
from etude.runs.beds import CONFIRMING
from etude.runtime import disk
from etude.runtime.environment import record as surroundings

RECORDS = HERE / "peers" / "records"
PAGE = HERE.parent / "docs" / "peers.md"


def repeat(case: Case, least: int, most: int, root: Path) -> dict[str, Any]:
    """Look after 6, 12, 24, 48 pairs of the peer, until they decide or there are `most`; `least` are made anyway."""
    for count in (n for n in LOOKS if least <= n <= most):
        said = side(case.claim, peer_pairs(case, range(CONFIRMING, CONFIRMING + count), root))
        if said["verdict"] != "inconclusive":
            break
    found = {"claim": case.name, "library": case.library, "peer": said}
    if case.own:
        seeds = range(CONFIRMING, CONFIRMING + len(said["runs"]))
        found["etude"] = side(case.claim, own_pairs(case, seeds, root))
    return {**found, **about(case)}


def about(case: Case) -> dict[str, Any]:
    """What both arms were told, and where this was run."""
    told = {name: words_of(case, name) for name in (case.arm, case.baseline)}
    here = surroundings(0)
    return {
        "settings": {name: {"trainer": w.trainer, **w.about, **w.settings} for name, w in told.items()},
        "lacks": [sentence for w in told.values() for sentence in w.lacks],
        "environment": {
            "peer": versions(case.library), **{k: here[k] for k in ("commit", "versions", "processor", "kernels")}
        },
    }  # fmt: skip


def recorded(name: str) -> int:
    """Pairs of the peer that a claim has a record of."""
    path = RECORDS / f"{name}.json"
    return len(json.loads(path.read_text())["peer"]["runs"]) if path.is_file() else 0


def run(chosen: list[str], least: int, most: int, root: Path) -> None:
    """Every case at the first look, then those that are undecided at the next; records as they come."""
    known = cases()
    for look in (n for n in LOOKS if least <= n <= most):
        for name in (n for n in chosen or known if recorded(n) <= look):
            print(f"{time.strftime('%H:%M:%S')} {name}: up to {look} pairs ...", flush=True)
            found = repeat(known[name], least, look, root)
            RECORDS.mkdir(exist_ok=True)
            disk.replace_file(RECORDS / f"{name}.json", (json.dumps(found, indent=1) + "\n").encode())
            print(f"{time.strftime('%H:%M:%S')} {name}: {found['peer']['verdict']}", flush=True)


def main() -> None:
    """Run, or write the page from what was recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("run", "page"))
    parser.add_argument("claims", nargs="*", choices=[[], *cases()], help="all of them if none is named")
    parser.add_argument("--least", type=int, choices=LOOKS, default=6, help="pairs to begin with")
    parser.add_argument("--most", type=int, choices=LOOKS, default=12, help="pairs to stop at")
    parser.add_argument("--root", type=Path, default=HERE.parent / "runs" / "peers", help="where runs are kept")
    chosen = parser.parse_args()
    if chosen.verb == "run":
        run(chosen.claims, chosen.least, chosen.most, chosen.root)
    PAGE.write_text(page(cases(), stored(RECORDS)))
    print(PAGE, file=sys.stderr)


if __name__ == "__main__":
    main()
