"""A GRPO training step, etude against TRL, end to end: one JSON with the ratio of tokens per second for each case.

Both arms get the same model folder, prompts, reward, group size, optimizer, learning rate and number of threads, and
take their steps in turn (A B A B ...). TRL runs at the fastest of the settings in `PEER_SETTINGS`, found before each
case; etude runs at its defaults. With one thread the ratio is that of processor time, which is wall time on an idle
machine and does not count what other processes take; wall time is reported beside it. `--ablation` adds a table of what each of etude's savings gives.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from _arms import PEER, Arm, in_turn, peer_python, ratios
from _cases import CASES, Case, make_model
from _own import SAVINGS

TARGETS = {"short": 2.0, "long": 3.0}
PEER_SETTINGS = [{"dtype": d, "rows": r} for d in ("float32", "autocast") for r in (0, 8)]
"""What TRL is tried at: dtype of the computation, rows of one forward pass (0: all)."""


def peer_arm(case: Case, folder: Path, threads: int, setting: dict[str, Any]) -> Arm:
    """TRL's process."""
    flags = [f"--{k}={v}" for k, v in setting.items()]
    return Arm(peer_python(), "_peer_trl.py", case.name, str(folder), *flags, threads=threads)


def own_arm(case: Case, folder: Path, threads: int, *flags: str) -> Arm:
    """etude's process."""
    return Arm(sys.executable, "_own.py", case.name, str(folder), *flags, threads=threads)


def tune_peer(case: Case, folder: Path, threads: int) -> tuple[dict[str, Any], dict[str, float]]:
    """TRL's fastest setting, and the tokens per second of each."""
    found: dict[str, float] = {}
    for setting in PEER_SETTINGS:
        arm = peer_arm(case, folder, threads, setting)
        in_turn([arm], rounds=1)
        found[json.dumps(setting)] = round(arm.rate(clock="processor" if threads == 1 else "seconds"), 1)
        arm.close()
    best: dict[str, Any] = json.loads(max(found, key=found.__getitem__))
    return best, found


def compare(case: Case, folder: Path, threads: int, rounds: int) -> dict[str, Any]:
    """One row of the table."""
    setting, tried = tune_peer(case, folder, threads)
    own, peer = own_arm(case, folder, threads), peer_arm(case, folder, threads, setting)
    in_turn([own, peer], rounds)
    own.close()
    peer.close()
    clock = "processor" if threads == 1 else "seconds"
    target, ratio = TARGETS[case.name.split("-")[0]], own.rate(clock=clock) / peer.rate(clock=clock)
    return {
        "settings": case.to_json(), "threads": threads, "peer_setting": setting, "peer_tried": tried,
        "etude": own.report(), "trl": peer.report(), "clock": clock,
        "ratio": round(ratio, 2),
        "ratio_by_round": [round(r, 2) for r in ratios(own, peer, clock)],
        "ratio_wall": round(own.rate() / peer.rate(), 2),
        "ratio_wall_total_tokens": round(own.rate("total_tokens") / peer.rate("total_tokens"), 2),
        "ratio_wall_by_round": [round(r, 2) for r in ratios(own, peer, "seconds")],
        "target": target, "met": ratio >= target,
    }  # fmt: skip


def ablate(case: Case, folder: Path, threads: int, rounds: int) -> dict[str, Any]:
    """Speed without each saving, over the speed with all of them, steps taken in turn."""
    arms = {"everything": own_arm(case, folder, threads)}
    for saving in SAVINGS:
        arms[f"without {saving}"] = own_arm(case, folder, threads, "--without", saving)
    arms["without any"] = own_arm(case, folder, threads, *(f for s in SAVINGS for f in ("--without", s)))
    in_turn(list(arms.values()), rounds)
    whole = arms["everything"]
    clock = "processor" if threads == 1 else "seconds"
    table = {}
    for name, arm in arms.items():
        arm.close()
        table[name] = {
            "completion_tokens_per_second": round(arm.rate(clock=clock), 1),
            "of_everything": round(statistics.median(ratios(arm, whole, clock)), 2),
            "seconds": {k: round(min(s[k] for s in arm.steps), 3) for k in ("generate", "update")},
        }
    return table


def machine() -> dict[str, Any]:
    """Where this was measured."""
    model = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), platform.processor())  # fmt: skip
    site = next((PEER / "lib").glob("python3*/site-packages"))
    peer = {p.name.split("-")[0]: p.name.split("-")[1].removesuffix(".dist-info") for p in site.glob("*.dist-info")}
    own = {name: version(name) for name in ("torch", "transformers")}
    return {"cpu": model, "cores": os.cpu_count(), "etude": own, "peer": {k: peer[k] for k in ("trl", *own)}}


def main() -> None:
    """Print the JSON; exit 1 if a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ablation", nargs="*", choices=list(CASES), default=[])
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    peer_python()
    result: dict[str, Any] = {"machine": machine(), "cases": {}, "ablation": {}}
    with tempfile.TemporaryDirectory() as scratch:
        for name in dict.fromkeys([*chosen.cases, *chosen.ablation]):
            folder = make_model(CASES[name], Path(scratch) / name)
            if name in chosen.cases:
                result["cases"][name] = row = compare(CASES[name], folder, chosen.threads, chosen.rounds)
                print(f"{name}: {row['ratio']}x (target {row['target']}x)", file=sys.stderr, flush=True)
            if name in chosen.ablation:
                result["ablation"][name] = ablate(CASES[name], folder, chosen.threads, chosen.rounds)
    print(text := json.dumps(result, indent=1))
    if chosen.output:
        chosen.output.write_text(text + "\n")
    sys.exit(0 if all(row["met"] for row in result["cases"].values()) else 1)


if __name__ == "__main__":
    main()
