"""Which tricks beat a re-tuned learning rate: every method with verifiable rewards against GRPO, bed by bed.

    python benchmarks/which_tricks.py                      # train what is missing (hours), then write the page
    python benchmarks/which_tricks.py --page               # only the page, from the runs in studies/
    python benchmarks/which_tricks.py --beds enumerable/twin --methods dapo maxrl
    python benchmarks/which_tricks.py --costs              # what a step of each costs; wants an idle machine

Each method is compared as published, and after the same sweep of learning rate and updates per batch as GRPO; beside
them stand what anybody can do without a paper: GRPO with a swept rate, with more updates of each batch, and with twice
the problems in a step, since methods that throw groups away sample others in their place.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from method_costs import timed

from etude.core.edit import set_values
from etude.core.errors import EtudeError
from etude.core.fit import objections
from etude.core.kinds import TokenMethod
from etude.core.registry import family, files, get_method
from etude.core.task import LanguageTask
from etude.evaluation.intervals import Interval
from etude.evaluation.plots import interval_bars
from etude.loops.language import LanguageLoop
from etude.policies.language import LanguagePolicy
from etude.runs.beds import Bed, load_bed
from etude.runs.claim_runs import PUBLISHED, TUNED
from etude.runs.contest import Arm, Row, Sweep, both, compete, failures, kept_in, settings_of, table
from etude.runtime.jsonl import JsonLines

ROOT = Path(__file__).resolve().parent.parent
PAGE, PICTURES = ROOT / "docs" / "which-tricks-help.md", ROOT / "docs" / "images"
COSTS = ROOT / "studies" / "costs.json"
BEDS = ("enumerable/twin", "language/compose-easy", "language/compose-medium", "language/compose-hard")
VERDICTS = ("better", "level", "worse", "open")
BASELINE, SWEPT = "grpo", "grpo, rate and updates swept"
TWICE = "grpo, twice the problems, both swept"

TEXT = """# Which tricks beat a re-tuned learning rate?

{monday}

## How to read it

Every arm starts from the bed's model, takes as many steps on as many problems, and is measured on the same test
problems along the way; what is compared is the area under that curve, so that learning early counts. Runs are paired
by their seeds. A difference of 1 would lift GRPO's mean to the ceiling (*headroom*), intervals are at 95%; **better**
and **worse** hold at a false discovery rate of 5% over all arms of a column (Benjamini and Hochberg), *level* means
that the whole interval is smaller than what matters (a tenth of what GRPO gains), *open* that more runs are needed.
*As published* are each method's own values, against GRPO's own; *after tuning* both have been through the same sweep
of learning rate and updates per batch on other seeds. *Ceiling* and *rate* are of a curve that saturates, fitted to
the arm's mean: where it is going, and how fast (1: after the budget 1 - 1/e of the way is gone). A dagger marks what is
at the edge of its sweep: the next value may be better. `time` is processor time of a step over GRPO's, where it was
measured; `samples` are the completions used, over GRPO's: methods that throw groups away draw others in their place,
and *grpo, twice the problems* is what more samples give without a method. A method that was made for long runs, long
answers or large k cannot show here what it is for; [the claims](claims.md) ask each for its own.

{beds}

Made by `python benchmarks/which_tricks.py`; the runs are in `studies/`.
"""


def methods() -> list[str]:
    """Methods that learn from samples of a language model."""
    found = [n for n in files("methods") if family("methods", n) == "rlvr"] + ["reinforce"]
    made = {n: m for n in found if isinstance(m := get_method(n), TokenMethod)}  # recipes are chains of runs
    return [n for n, m in made.items() if m.row != "theory" and m.experience and m.experience.samples]


def compared() -> list[str]:
    """Methods that have runs on one of the beds."""
    return sorted({arm for name in BEDS for arm in columns(load_bed(name)) if arm in files("methods")})


def misfit(bed: Bed, name: str) -> str | None:
    """Why a method cannot be trained on a bed's task, as a sentence; None if it can."""
    return next(objections(get_method(name, bed.goal.world), bed.goal), None)


def rivals(bed: Bed) -> list[Arm]:
    """What can be done to the baseline without a paper."""
    more = [Arm(label=f"{BASELINE}, {n} updates", method=BASELINE, changes={"minibatches": n}) for n in (2, 4, 8)]
    rate = {"optimizer.lr": bed.sweep["optimizer.lr"]}
    arms = [
        *more,
        Arm(label=f"{BASELINE}, rate swept", method=BASELINE, sweeps={PUBLISHED: rate}),
        Arm(label=SWEPT, method=BASELINE, sweeps={PUBLISHED: bed.sweep}),
    ]
    if isinstance(bed.goal, LanguageTask):  # of tables every method sees all problems
        one = int(str(bed.set.get("problems", get_method(BASELINE, bed.goal.world).problems)))
        sweeps: dict[str, Sweep] = dict.fromkeys((PUBLISHED, TUNED), bed.sweep)
        arms.append(Arm(label=TWICE, method=BASELINE, changes={"problems": 2 * one}, sweeps=sweeps))
    return arms


# The page


class Columns(NamedTuple):
    """An arm on a bed, in both settings."""

    published: Row | None
    tuned: Row | None


def columns(bed: Bed) -> dict[str, Columns]:
    """Every arm that has runs, the largest difference after tuning first."""
    lines = list(JsonLines.read(ROOT / kept_in(bed)))
    found = {setting: {row.arm: row for row in table(bed, lines, setting)} for setting in settings_of(lines)}
    arms = dict.fromkeys(name for rows in found.values() for name in rows)
    made = {arm: Columns(*(found.get(s, {}).get(arm) for s in (PUBLISHED, TUNED))) for arm in arms}
    return dict(sorted(made.items(), key=_place))


def _place(item: tuple[str, Columns]) -> tuple[bool, float]:
    """What needs no paper first, then methods by what they gain after tuning."""
    arm, columns = item
    row = columns.tuned or columns.published
    return arm in files("methods"), -(row.gap.value if row else 0.0)


def monday(found: dict[str, dict[str, Columns]]) -> str:
    """What a reader should do first, said from the runs."""
    said = []
    for name, arms in found.items():
        swept = arms[SWEPT].published if SWEPT in arms else None
        twice = arms[TWICE].tuned if TWICE in arms else None
        own = {arm: c for arm, c in arms.items() if c.tuned and arm != TWICE}
        if swept is None or not own:
            continue
        ahead = [a for a, c in own.items() if c.published and c.published.gap.value > swept.gap.value]
        by = {v: [a for a, c in own.items() if c.tuned and c.tuned.verdict == v] for v in VERDICTS}
        said.append(
            f"- **{name}**: sweeping GRPO's own rate and updates gave {_gap(swept.gap)} of the headroom. Of {len(own)} "
            f"methods as published, {len(ahead)} gave more{_named(ahead)}. After the same sweep {len(by['better'])} "
            f"were better than GRPO{_named(_bought(own, by['better']))}, {len(by['level'])} level, "
            f"{len(by['worse'])} worse, and {len(by['open'])} stayed open."
            f"{_beside(twice, [row for a in by['better'] if (row := own[a].tuned)])}"
        )  # fmt: skip
    first = (
        "Sweep the learning rate and the number of updates of the method that you have before you take another one. "
        "Then count samples: what throws groups away and draws others is to be held against your own method with more "
        "problems in a step."
    )
    return "\n".join([f"**On Monday.** {first}", "", *said]) if said else ""


def _beside(twice: Row | None, better: Sequence[Row]) -> str:
    """What twice the problems gave the swept baseline, and whether what was better gave more."""
    if twice is None:
        return ""
    above = [row.arm for row in better if row.gap.value > twice.gap.high]
    than = f"{', '.join(above)} above that" if above else "nothing that was better is above that"
    return f" GRPO itself, with twice the problems in a step: {_gap(twice.gap)}, and {than}."


def _named(names: Sequence[str]) -> str:
    return f" ({', '.join(names)})" if names else ""


def _bought(arms: Mapping[str, Columns], names: Sequence[str]) -> list[str]:
    """Names of arms, with the samples that they took where those were more than the baseline's."""
    took = {name: row.completions for name in names if (row := arms[name].tuned)}
    return [f"{name} with {ratio:.2g} times the samples" if ratio > 1.05 else name for name, ratio in took.items()]


def _gap(gap: Interval) -> str:
    return f"{gap.value:+.2f} ({gap.low:+.2f} to {gap.high:+.2f})"


def section(bed: Bed, arms: dict[str, Columns], costs: dict[str, float]) -> str:
    """A bed: forest plots and a table of both settings, and what was left out."""
    shown = [
        _drawn(bed, setting, arms) for setting in (PUBLISHED, TUNED) if any(getattr(c, setting) for c in arms.values())
    ]
    head = ["arm", "as published", "", "after tuning", "", "tuned to", "ceiling", "rate", "time", "samples", "runs"]
    rows = [head, ["---"] * len(head), *(_cells(bed, arm, c, costs) for arm, c in arms.items())]
    failed = failures(list(JsonLines.read(ROOT / kept_in(bed))))
    out = [f"\n{arm} was left out: {why}\n" for arm, why in failed.items()]
    if later := [name for name in methods() if name not in {BASELINE, *arms, *failed} and not misfit(bed, name)]:
        out.append(f"\nNot run here yet: {', '.join(later)}.\n")
    if other := [name for name in methods() if misfit(bed, name)]:
        out.append(f"\nNot for a task of {bed.goal.world}: {', '.join(other)}.\n")
    text = "\n".join("| " + " | ".join(cells) + " |" for cells in rows)
    return f"## {bed.name}\n\n{bed.about}\n\n{''.join(shown)}{text}\n" + "".join(out)


def _drawn(bed: Bed, setting: str, arms: dict[str, Columns]) -> str:
    """A forest plot of one setting, the largest difference on top, as Markdown."""
    picture = PICTURES / f"which-tricks-{bed.name.replace('/', '-')}-{setting}.png"
    bars = {arm: row.gap for arm, c in arms.items() if (row := getattr(c, setting))}
    bars = dict(sorted(bars.items(), key=lambda item: -item[1].value))
    title = "as published" if setting == PUBLISHED else "after the same sweep"
    interval_bars(bars, picture, x_label=f"difference to {BASELINE}, in units of headroom", title=title, reference=0.0)
    return f"![{bed.name}, {title}](images/{picture.name})\n\n"


def _tuned(bed: Bed, found: Mapping[str, Any]) -> str:
    """What a sweep chose; a dagger where that was the least or the most that it had to choose from."""
    edges = {k: (min(v), max(v)) for k, v in bed.sweep.items()}
    said = [f"{k.rpartition('.')[2]} {v:g}{'†' if v in edges.get(k, ()) else ''}" for k, v in found.items()]
    return ", ".join(said)


def _cells(bed: Bed, arm: str, both: Columns, costs: dict[str, float]) -> list[str]:
    link = f"[{arm}](methods/{arm}.md)" if arm in files("methods") else arm
    found = [_cell(both.published), _cell(both.tuned)]
    row = both.tuned or both.published
    assert row is not None
    tuned = _tuned(bed, row.tuned)
    time = f"{costs[arm]:.2f}" if arm in costs else ""
    curve = [f"{row.ceiling:.2f}", f"{row.rate:.1f}"]
    return [link, *found[0], *found[1], tuned, *curve, time, f"{row.completions:.2f}", str(row.pairs)]


def _cell(row: Row | None) -> tuple[str, str]:
    if row is None:
        return "", ""
    return _gap(row.gap), f"**{row.verdict}**" if row.verdict in ("better", "worse") else row.verdict


def write(beds: Sequence[Bed]) -> None:
    """The page and its pictures, from the runs that are there."""
    found = {bed.name: columns(bed) for bed in beds if list(JsonLines.read(ROOT / kept_in(bed)))}
    costs = json.loads(COSTS.read_text())["ratios"] if COSTS.is_file() else {}
    sections = [section(bed, found[bed.name], costs) for bed in beds if bed.name in found]
    PAGE.write_text(TEXT.format(monday=monday(found), beds="\n".join(sections)))


# What a step costs


def cost(name: str, bed: Bed, rounds: int = 7) -> float:
    """Processor time of a step over the baseline's, taken in turn from the same model; the median over rounds."""
    fields = {k: v for k, v in bed.set.items() if not k.startswith("task.")}
    loops = []
    for own in (name, BASELINE):
        policy: Any = LanguagePolicy.load(bed.model, device="cpu")
        method = set_values(get_method(own), {**fields, "optimizer.lr": 1e-9})
        loops.append(LanguageLoop(method, bed.goal, policy, seed=0, steps=rounds + 1))
    for loop in loops:
        loop.step()  # what is made once
    ratios = [timed(loops[0])[0] / timed(loops[1])[0] for _ in range(rounds)]
    return round(statistics.median(ratios), 3)


def measure_costs(names: Sequence[str]) -> None:
    from etude.runtime.environment import record

    bed, here = load_bed("language/compose-easy"), record(0)
    ratios = {}
    for name in names:
        try:
            ratios[name] = cost(name, bed)
        except EtudeError as error:  # it is for another task, or for more than one run
            print(f"{name} was left out: {error}")
    COSTS.parent.mkdir(exist_ok=True)
    COSTS.write_text(json.dumps({"bed": bed.name, "processor": here["processor"], "ratios": ratios}, indent=1) + "\n")


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--beds", nargs="*", default=BEDS)
    asked.add_argument("--methods", nargs="*", default=None)
    asked.add_argument("--seeds", type=int, default=12)
    asked.add_argument("--workers", type=int, default=None)
    asked.add_argument("--page", action="store_true", help="only write the page")
    asked.add_argument("--costs", action="store_true", help="only measure what a step costs")
    options = asked.parse_args()
    if options.costs:
        return measure_costs(options.methods or compared())
    names = options.methods or methods()
    for bed in () if options.page else map(load_bed, options.beds):
        arms = [*rivals(bed), *(both(bed, name) for name in names if not misfit(bed, name))]
        compete(bed, arms, ROOT / kept_in(bed), seeds=options.seeds, root=ROOT / "runs/beds", workers=options.workers)
    write([load_bed(name) for name in BEDS])


if __name__ == "__main__":
    main()
