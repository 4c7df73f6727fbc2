"""Draw the pictures of the documentation: real runs, training those that are not there yet, and simulated claims.

    python docs/make_figures.py                 three seeds of the main job, about a minute of one core each

Runs are kept in runs/figures and used again as long as they have the same settings. The numbers that go with the
picture (README.md and docs/results.md quote them) are printed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from etude.evaluation.intervals import Band
from etude.evaluation.plots import draw_panels, learning_curves
from etude.evaluation.verdicts import LOOKS, Outcome, judge
from etude.runs.comparing import Job, curves, jobs_for, run_jobs

IMAGES = Path(__file__).resolve().parent / "images"
STEPS, SEEDS = 150, 3


def learning_curve(jobs: list[Job], path: Path) -> Path:
    """Accuracy on the training problems of each batch, as the interquartile mean over seeds."""
    steps = range(1, STEPS + 1)
    runs = curves(jobs, steps, "accuracy")
    title = f"grpo on compose: {len(jobs)} seeds, interquartile mean and 95% band"
    return learning_curves({"grpo": runs}, steps, path, y_label="share of answers that are right", title=title)


def scores(jobs: list[Job]) -> str:
    """The evaluation of the runs before and after training, each seed's own number."""
    found = [json.loads((job.folder / "evaluation.json").read_text()) for job in jobs]
    lines = []
    for split in ("test", "heldout"):
        for metric in ("pass@1", "pass@8"):
            before, after = (
                "  ".join(f"{run[when][split][metric]['value']:.3f}" for run in found) for when in ("before", "after")
            )
            lines.append(f"{split:<8} {metric}   before {before}   after {after}")
    return "\n".join(lines)


def decisions(path: Path) -> Path:
    """What comes out of a claim whose paired difference is normal(effect, 1), after looks at 6, 12, 24 and 48 pairs."""
    random, effects = np.random.default_rng(0), np.arange(0, 1.51, 0.125)
    panels: dict[str, dict[str, Band]] = {}
    for smallest in (0.3, 0.75, 1.5):
        shares = np.array([_outcomes(random.normal(e, 1, (EXPERIMENTS, LOOKS[-1])), smallest) for e in effects]).T
        error = 1.96 * np.sqrt(shares * (1 - shares) / EXPERIMENTS)
        bands = [Band(effects, s, s - e, s + e) for s, e in zip(shares, error)]
        panels[f"smallest that matters: {smallest:g} sd"] = dict(zip(NAMES, bands))
    return draw_panels(
        panels, path, x_label="effect in deviations of the paired difference", y_label="share of experiments"
    )


EXPERIMENTS = 400
NAMES = {"held": (Outcome.HELD,), "equivalent": (Outcome.EQUIVALENT,), "reversed": (Outcome.REVERSED,),
         "undecided": (Outcome.INCONCLUSIVE,)}  # fmt: skip


def _outcomes(differences: NDArray[np.float64], smallest: float) -> list[float]:
    """Share of each outcome among experiments [n, pairs]."""
    found = []
    for d in differences:
        judged = (judge(d[:n], 0.0, smallest).outcome for n in LOOKS)
        found.append(next((o for o in judged if o.decided), Outcome.INCONCLUSIVE))
    return [sum(o in those for o in found) / len(found) for those in NAMES.values()]


def main() -> None:
    """Train what is missing, draw, print the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/figures"), help="where runs are kept and looked for")
    parser.add_argument("--workers", type=int, default=None, help="runs at a time; all cores by default")
    chosen = parser.parse_args()
    jobs = jobs_for("grpo", "compose", "tiny", SEEDS, STEPS, (), chosen.runs)
    run_jobs(jobs, chosen.workers)
    print(learning_curve(jobs, IMAGES / "learning-curve.png"))
    print(scores(jobs))
    print(decisions(IMAGES / "how-claims-decide.png"))


if __name__ == "__main__":
    main()
