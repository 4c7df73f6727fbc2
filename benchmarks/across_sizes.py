"""Do effects carry to larger models? Claims, and what differs from GRPO, on 0.5, 3 and 12 million parameters.

    python benchmarks/across_sizes.py                          # make starts, train what is missing (hours), the page
    python benchmarks/across_sizes.py --sizes 0.5m --workers 2
    python benchmarks/across_sizes.py --methods dapo gpg rft sft --seeds 6
    python benchmarks/across_sizes.py --model FOLDER           # your own model, on the device that is there
    python benchmarks/across_sizes.py --page                   # only the page, from studies/across-sizes/

A model reads the same mediocre worked examples, whatever its size, until it gets about as many chains right as the
others; GRPO's rate is chosen on seeds of its own, and all arms of the size have it. Pairs share their seeds. Runs are
kept in runs/beds and used again, so what was stopped goes on.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from sizes.cases import CASES, SIZES, Case, given, known
from sizes.effects import recorded
from sizes.page import page
from sizes.runs import measure

from etude.core.errors import ConfigError, EtudeError, UnknownNameError

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "studies" / "across-sizes"
SEEDS, LEAST = 3, 2
NAME = "across-sizes.md"


def chosen(names: Sequence[str] | None) -> list[Case]:
    """Cases by their names, all of them by default. Raises UnknownNameError for one that there is not."""
    there = {case.name: case for case in CASES}
    for name in names or ():
        if name not in there:
            raise UnknownNameError("effect", name, there, f"There are: {', '.join(there)}.")
    return [there[name] for name in names] if names else list(CASES)


def run(options: argparse.Namespace) -> None:
    """Train what is missing of the sizes that were asked for, the smallest first."""
    if options.seeds < LEAST:
        raise ConfigError(f"An interval over pairs wants at least {LEAST} seeds, got --seeds {options.seeds}.")
    if options.model is None and (options.read_steps or options.read_rate):
        raise ConfigError("--read-steps and --read-rate are of a --model; what etude's sizes read is in their recipes.")
    cases = chosen(options.methods)
    if options.model is not None:
        sizes = [given(options.model, options.read_steps, options.read_rate)]
    else:
        sizes = [known(name) for name in options.sizes]
    for size in sizes:
        measure(size, cases, options.out, seeds=options.seeds, root=options.root, workers=options.workers)


def write(out: Path, docs: Path) -> Path:
    """The page and its picture, from the records below `out`."""
    text = page(recorded(out, CASES), CASES, docs / "images")
    (docs / NAME).write_text(text, encoding="utf-8")
    return docs / NAME


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, or write the page from what was recorded; what is refused is said in a sentence."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--sizes", nargs="+", default=SIZES, help="of etude's; all of them")
    asked.add_argument("--model", default=None, help="a model of your own instead: a folder or a name")
    asked.add_argument("--read-steps", type=int, default=None, help="steps of reading examples, of a --model")
    asked.add_argument("--read-rate", type=float, default=None, help="learning rate of that")
    asked.add_argument("--methods", nargs="+", default=None, help="effects by their names; all of them")
    asked.add_argument("--seeds", type=int, default=SEEDS, help="pairs of each effect")
    asked.add_argument("--workers", type=int, default=None, help="runs at a time; all cores")
    asked.add_argument("--root", type=Path, default=ROOT / "runs" / "beds", help="where runs are kept")
    asked.add_argument("--out", type=Path, default=None, help="where records and page go; studies/ and docs/")
    asked.add_argument("--page", action="store_true", help="only write the page")
    options = asked.parse_args(arguments)
    docs = ROOT / "docs" if options.out is None else options.out
    options.out = options.out or KEPT
    try:
        if not options.page:
            run(options)
        print(write(options.out, docs), file=sys.stderr)
    except EtudeError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
