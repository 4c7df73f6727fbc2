"""Experience of several turns, etude against TRL's own tool loop: one JSON with the ratio of time for equal episodes.

    python benchmarks/multi_turn_vs_trl.py [--talks single steps ...] [--rounds 5] [--output FILE]

Both get the same random model, whose turns never end by themselves, the same prompts (each played by a group of eight),
the same number of tokens in each turn, and a tool whose answer is picked by a checksum of what was said (`_talks.py`).
One thread and float32 each, in turn (A B A B ...). Ratios are of processor time; where the tool waits, of wall time,
and etude plays with several numbers of worker processes.

Before each row both play once without chance, which gives the share of episodes that are the same to the last token.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from _arms import Arm, in_turn, machine, peer_python, ratios
from _talks import TALKS, Talk, make_talker

PACKAGES = ["torch", "transformers"]
"""Whose versions are reported."""
WORKERS = (0, 16, 32)
"""Processes that step etude's environments where these wait."""


def own_arm(talk: Talk, folder: Path, *flags: str) -> Arm:
    """etude's process."""
    return Arm(sys.executable, "_own_talks.py", talk.name, str(folder), *flags, threads=1)


def peer_arm(talk: Talk, folder: Path, *flags: str) -> Arm:
    """TRL's process."""
    return Arm(peer_python("trl"), "_peer_trl_talks.py", talk.name, str(folder), *flags, threads=1)


def same_episodes(talk: Talk, folder: Path) -> float:
    """Share of episodes with the same tokens on both sides where the likeliest token is always said."""
    arms = [own_arm(talk, folder, "--greedy"), peer_arm(talk, folder, "--greedy")]
    in_turn(arms, rounds=1, warmup=0)
    for arm in arms:
        arm.close()
    own, theirs = (arm.steps[0]["tokens"] for arm in arms)
    return statistics.mean(a == b for a, b in zip(own, theirs, strict=True))


def compare(talk: Talk, folder: Path, rounds: int) -> dict[str, Any]:
    """One row."""
    same = same_episodes(talk, folder)
    counts = WORKERS if talk.seconds else (0,)
    owns = {f"etude, {n} workers" if n else "etude": own_arm(talk, folder, f"--workers={n}") for n in counts}
    peer = peer_arm(talk, folder)
    load = os.getloadavg()[0]
    in_turn([*owns.values(), peer], rounds)
    for arm in [*owns.values(), peer]:
        arm.close()
    clock = "seconds" if talk.seconds else "processor"
    return {
        "talk": talk.to_json(), "same_episodes_without_chance": same, "clock": clock,
        "load": [load, os.getloadavg()[0]],
        "arms": {name: report(arm) for name, arm in [*owns.items(), ("trl", peer)]},
        "ratios": {name: spread(ratios(arm, peer, clock, "episodes")) for name, arm in owns.items()},
    }  # fmt: skip


def report(arm: Arm) -> dict[str, Any]:
    """What an arm took, round by round; milliseconds of the processor for an episode at the median."""
    found = {k: [round(s[k], 3) for s in arm.steps] for k in ("seconds", "processor", "generate") if k in arm.steps[0]}
    middle = statistics.median(s["processor"] / s["episodes"] for s in arm.steps)
    return {k: arm.steps[0][k] for k in ("episodes", "sampled", "read")} | found | {"ms": round(1000 * middle, 3)}


def spread(found: list[float]) -> dict[str, Any]:
    """Times as fast as TRL: median, quartiles and every round."""
    low, middle, high = np.percentile(found, (25, 50, 75)).tolist()
    return {"median": round(middle, 2), "quartiles": [round(low, 2), round(high, 2)],
            "by_round": [round(r, 2) for r in found]}  # fmt: skip


def main() -> None:
    """Print the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--talks", nargs="+", choices=list(TALKS), default=list(TALKS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, help="keeps the rows that are there already and not asked for")
    chosen = parser.parse_args()
    peer_python("trl")
    kept = json.loads(chosen.output.read_text())["talks"] if chosen.output and chosen.output.exists() else {}
    result: dict[str, Any] = {"machine": machine("trl", PACKAGES, ["trl", *PACKAGES]), "talks": kept}
    with tempfile.TemporaryDirectory() as scratch:
        for name in chosen.talks:
            folder = make_talker(TALKS[name], Path(scratch) / name)
            result["talks"][name] = row = compare(TALKS[name], folder, chosen.rounds)
            print(f"{name}: {row['ratios']}", file=sys.stderr, flush=True)
            if chosen.output:
                chosen.output.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
