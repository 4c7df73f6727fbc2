"""Learning curves of runs of several libraries: kept in files, drawn, and compared by equivalence.

At each point, the return of a run is the mean of its last training episodes: 100, or as many as its case says.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from _arms import HERE
from _equivalence import equivalence

from etude.evaluation.intervals import Band, curve_band, probability_of_improvement
from etude.evaluation.plots import draw_panels

Episodes = list[list[float]]
"""[environment steps so far, return] of every training episode, in order."""
Train = Callable[[], list[Episodes]]
WINDOW, POINTS = 100, 20
SHOWN = (2, 5, 10, 15, 20)
"""Points, of 20, that the report has numbers for."""
OWN = "etude"


def peer(python: Path, *command: str) -> Episodes:
    """One run of a peer, in a process with one thread."""
    limits = {k: "1" for k in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    done = subprocess.run(
        [str(python), "-W", "ignore", *command], capture_output=True, text=True, cwd=HERE, env={**os.environ, **limits}
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def kept(folder: Path, key: dict[str, Any], train: Train) -> list[Episodes]:
    """Runs from their file, or made now and written there with the time they took."""
    file = folder / f"{hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]}.json"
    if not file.exists():
        print(f"{key['case']['name']}: {key['arm']} ...", file=sys.stderr, flush=True)
        begun = time.monotonic()
        runs = train()
        file.write_text(json.dumps({**key, "seconds": round(time.monotonic() - begun), "runs": runs}))
    return json.loads(file.read_text())["runs"]  # type: ignore[no-any-return]


def curve(episodes: Episodes, points: np.ndarray, window: int = WINDOW) -> np.ndarray:
    """[points] mean return of the last `window` episodes that had ended by then."""
    steps, returns = np.array(episodes).T
    ended = np.searchsorted(steps, points, side="right")
    return np.array([returns[max(0, n - window) : n].mean() for n in ended])


def entry(points: np.ndarray, curves: dict[str, np.ndarray], bands: dict[str, Band]) -> dict[str, Any]:
    """What the report says of one case."""
    found, at = dict[str, Any](), [i - 1 for i in SHOWN]
    for name, band in bands.items():
        found[name] = {
            str(int(points[i])): [round(float(x[i]), 1) for x in (band.value, band.low, band.high)] for i in at
        }
    pairs = [(ours, theirs) for ours in bands for theirs in bands if ours.startswith(OWN) and ours != theirs]
    for ours, theirs in [p for p in pairs if p[1] != OWN]:
        found[f"{ours} against {theirs}"] = against(points, curves[ours], curves[theirs])
    return found


def against(points: np.ndarray, own: np.ndarray, theirs: np.ndarray) -> dict[str, Any]:
    """Curves [seeds, points] of one library and of another, by equivalence.

    The smallest difference that matters is a tenth of what the other's curve gains.
    """
    mean = theirs.mean(0)
    smallest = float(mean.max() - mean.min()) / 10
    each = [equivalence(own[:, i], theirs[:, i], smallest)["verdict"] for i in range(len(points))]
    return {
        "smallest difference that matters": round(smallest, 1),
        "points": {verdict: each.count(verdict) for verdict in sorted(set(each))},
        "different at": [int(p) for p, verdict in zip(points, each) if verdict == "different"],
        "at the end": equivalence(own[:, -1], theirs[:, -1], smallest),
        "mean of the curve": equivalence(own.mean(1), theirs.mean(1), smallest),
        "probability that the first curve is higher": str(probability_of_improvement(own.mean(1), theirs.mean(1))),
    }


def report(
    cases: Mapping[str, tuple[int, dict[str, Any], Mapping[str, tuple[dict[str, Any], Train]]]], folder: Path
) -> tuple[dict[str, Any], dict[str, dict[str, Band]]]:
    """Curves of every arm of every case, trained if they are not in `folder`: what the report says, and the bands.

    Args:
        cases: by name, the budget in environment steps, what the report says of the case, and its arms: each with what
            its runs are known by, and what trains it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found, panels = dict[str, Any](), dict[str, dict[str, Band]]()
    for name, (budget, about, arms) in cases.items():
        points = np.linspace(budget / POINTS, budget, POINTS).round()
        curves = {
            arm: np.array(
                [curve(r, points, about.get("window", WINDOW)) for r in kept(folder, {"arm": arm, **key}, train)]
            )
            for arm, (key, train) in arms.items()
        }
        panels[name] = {arm: curve_band(values, points) for arm, values in curves.items()}
        found[name] = {"case": about, **entry(points, curves, panels[name])}
    return found, panels


def shown(
    result: Mapping[str, Any], panels: Mapping[str, Mapping[str, Band]], image: Path | None, output: Path | None
) -> None:
    """Print what was found, as JSON; write it, and the curves as a picture, where that is asked for."""
    if image:
        drawn = {
            name: {arm: dataclasses.replace(band, x=band.x / 1000) for arm, band in bands.items()}
            for name, bands in panels.items()
        }
        draw_panels(drawn, image, x_label="environment steps, thousands", y_label="return (last episodes)")
    print(text := json.dumps(result, indent=1))
    if output:
        output.write_text(text + "\n")
