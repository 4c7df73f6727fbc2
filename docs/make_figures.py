"""Draw the pictures of the documentation from real runs, training those that are not there yet.

    python docs/make_figures.py                 three seeds of the main job, about a minute of one core each

Runs are kept in runs/figures and used again as long as they have the same settings. The numbers that go with the
picture (README.md and docs/results.md quote them) are printed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from etude.evaluation.plots import learning_curves
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


if __name__ == "__main__":
    main()
