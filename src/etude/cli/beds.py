"""`etude beds`: tasks with a start, a fixed test set and a card, on which methods are compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import App

if TYPE_CHECKING:
    from etude.runs.beds import Bed
    from etude.runs.contest import Row

beds = App(name="beds", help="What methods are compared on; `beds show NAME` prints one, `beds make NAME` measures it.")


@beds.default
def list_beds() -> None:
    """Every bed with what its card says: where the baseline starts and ends, and what 12 pairs of runs tell apart."""
    from rich.console import Console
    from rich.padding import Padding

    from etude.runs.beds import beds as known
    from etude.runs.beds import load_bed
    from etude.runs.cards import doubts, read_card

    console = Console(highlight=False)
    for name in known():
        bed = load_bed(name)
        console.print(name, style="bold", markup=False)
        card = read_card(name)
        voids = doubts(bed, card) if card else []
        said = [f"Void where a claim does not say what matters: {void.gate}." for void in voids]
        for line in (_figures(bed, card), *said, bed.about):
            console.print(Padding(line, (0, 0, 0, 4)), markup=False)


def _figures(bed: Bed, card: dict[str, Any] | None) -> str:
    """Where the baseline starts and ends on a bed, and what 12 pairs tell apart."""
    if card is None:
        return f"{bed.metric} of {bed.baseline}: not measured"
    start, base, resolved = card["start"][bed.metric], card["baseline"], card["resolves"]["area"]["12"]
    ends = f"{bed.metric} of {bed.baseline}: {start:.4g} to {base['end']:.4g}"
    return f"{ends}, area {base['area']:.4g}; 12 pairs resolve {resolved:.4g}"


@beds.command
def show(name: str) -> None:
    """Print a bed's recipe and its card.

    Parameters
    ----------
    name
        As in language/compose-easy (`etude beds`), or the path of a recipe.
    """
    import json

    from etude.runs.beds import beds as known
    from etude.runs.beds import load_bed
    from etude.runs.cards import read_card

    load_bed(name)
    path, card = known().get(name, Path(name)), read_card(name)
    print(path.read_text(encoding="utf-8").rstrip())
    print(f"\n{json.dumps(card, indent=1)}" if card else f"\nNot measured yet: etude beds make {name}")


@beds.command
def make(name: str, *, runs: Path = Path("runs/beds"), workers: int | None = None) -> None:
    """Measure a bed and write its card: its start, the baseline tuned by its sweep, and twelve fresh seeds of it.

    Parameters
    ----------
    name
        As in language/compose-easy (`etude beds`), or the path of a recipe.
    runs
        Where the runs are kept; those that exist are used again, so what was stopped goes on.
    workers
        Runs at a time; all cores by default.
    """
    import json

    from etude.runs.beds import load_bed
    from etude.runs.cards import card_path, doubts, make_card
    from etude.runs.tuning import at_the_edge

    bed = load_bed(name)
    card = make_card(bed, root=runs, workers=workers)
    path = card_path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(card, indent=1) + "\n")
    start, base = card["start"][bed.metric], card["baseline"]
    print(
        f"{bed.name}: {bed.metric} of {bed.baseline} from {start:.4g} to {base['end']:.4g} (area {base['area']:.4g})."
    )
    print(f"  tuned: {', '.join(f'{k}={v}' for k, v in card['tuned'].items()) or 'as it is'}")
    for edge in at_the_edge(bed.sweep, card["tuned"]):
        print(f"  the best {edge} is the last of its sweep to one side: a better one may lie beyond, so widen [sweep]")
    area, end = (card["resolves"][what]["12"] for what in ("area", "end"))
    print(f"  12 pairs resolve {area:.4g} of the area, {end:.4g} of the end.")
    for void in doubts(bed, card):
        print(f"  void where a claim does not say what matters, since {void.gate}:\n    {void.sentence}")
    print(f"  {path}")


@beds.command
def compare(
    name: str, *methods: str, seeds: int = 12, out: Path | None = None, runs: Path = Path("runs/beds"),
    workers: int | None = None,
) -> None:  # fmt: skip
    """Compare methods with a bed's baseline: as published and after the same tuning, by pairs of runs.

    Many differences are judged together, so that of those called better or worse at most 5% are so by chance.

    Parameters
    ----------
    name
        As in language/compose-easy (`etude beds`), or the path of a recipe.
    methods
        Names; parts stack with +, as in 'grpo+kl-to-reference'.
    seeds
        Runs of each arm in each setting.
    out
        The file with a line for each run; studies/NAME.jsonl by default. What is there is not trained again.
    runs
        Where the runs are kept; those that exist are used again, so what was stopped goes on.
    workers
        Runs at a time; all cores by default.
    """
    from etude.runs.beds import load_bed
    from etude.runs.contest import both, compete, failures, kept_in, settings_of, table

    bed = load_bed(name)
    path = out or kept_in(bed)
    lines = compete(bed, [both(bed, method) for method in methods], path, seeds=seeds, root=runs, workers=workers)
    for setting in settings_of(lines):
        print(f"{bed.name}, {setting}, against {bed.baseline}:")
        _print_rows(table(bed, lines, setting))
    for arm, why in failures(lines).items():
        print(f"{arm} was left out: {why}")
    print(f"  {path}")


def _print_rows(rows: Sequence[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    shown = Table(box=None, pad_edge=False)
    for column in ("arm", "area", "end", "difference in units of headroom", "q", "verdict", "runs"):
        shown.add_column(column, no_wrap=True, justify="left" if column in ("arm", "verdict") else "right")
    for row in rows:
        gap = f"{row.gap.value:+.3f} ({row.gap.low:+.3f} to {row.gap.high:+.3f})"
        shown.add_row(row.arm, f"{row.area:.4g}", f"{row.end:.4g}", gap, f"{row.q:.3f}", row.verdict, str(row.pairs))
    Console().print(shown)
