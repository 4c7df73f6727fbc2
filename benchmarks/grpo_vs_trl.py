"""A GRPO training step, etude against TRL, end to end: one JSON with the ratio of tokens per second for each case.

Both arms get the same model folder, prompts, reward, group size, optimizer, learning rate and number of threads, and
take their steps in turn (A B A B ...). Each runs at the fastest of its settings below, found before each case. With one
thread the ratio is that of processor time, which is wall time on an idle machine and does not count what other
processes take; wall time is reported beside it. `--ablation` adds a table of what each of etude's savings gives.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from _arms import Arm, in_turn, machine, peer_python, ratios
from _cases import CASES, Case, make_model
from _own import SAVINGS

OWN = ["torch", "transformers"]
"""Packages whose versions are reported."""
TARGETS = {"short-0.8M": 3.0, "long-0.8M": 4.5, "short-10M": 2.5, "long-10M": 3.0, "short-sparse-0.8M": 2.0}
DTYPES = ("float32", "autocast")
OWN_SETTINGS = [{"dtype": d} for d in DTYPES]
PEER_SETTINGS = [{"dtype": d, "rows": r} for d in DTYPES for r in (0, 8)]
"""What each is tried at: dtype of the computation, and for TRL the rows of one forward pass (0: all)."""


def peer_arm(case: Case, folder: Path, threads: int, setting: dict[str, Any]) -> Arm:
    """TRL's process."""
    flags = [f"--{k}={v}" for k, v in setting.items()]
    return Arm(peer_python("trl"), "_peer_trl.py", case.name, str(folder), *flags, threads=threads)


def own_arm(case: Case, folder: Path, threads: int, setting: dict[str, Any], *without: str) -> Arm:
    """etude's process."""
    flags = [f"--{k}={v}" for k, v in setting.items()] + [f"--without={saving}" for saving in without]
    return Arm(sys.executable, "_own.py", case.name, str(folder), *flags, threads=threads)


def clock(threads: int) -> str:
    """The clock of the ratios."""
    return "processor" if threads == 1 else "seconds"


def tune(
    make: Any, settings: list[dict[str, Any]], case: Case, folder: Path, threads: int, time: str
) -> dict[str, Any]:
    """The fastest setting by this clock, and the completion tokens per second of each, if there are several."""
    if len(settings) == 1:
        return {"setting": settings[0], "tried": {}, "failed": {}}
    found, failed = dict[str, float](), dict[str, str]()
    for setting in settings:
        try:
            arm = make(case, folder, threads, setting)
            in_turn([arm], rounds=2)
        except SystemExit as ended:  # out of memory, for one
            failed[json.dumps(setting)] = str(ended)
            continue
        found[json.dumps(setting)] = round(arm.rate(clock=time), 1)
        arm.close()
    if not found:
        raise SystemExit("\n".join(failed.values()))
    return {"setting": json.loads(max(found, key=found.__getitem__)), "tried": found, "failed": failed}


def compare(
    case: Case, folder: Path, threads: int, rounds: int, own_settings: list[dict[str, Any]] = OWN_SETTINGS,
    peer_settings: list[dict[str, Any]] = PEER_SETTINGS, time: str = "",
) -> dict[str, Any]:  # fmt: skip
    """One row of the table."""
    time = time or clock(threads)
    mine = tune(own_arm, own_settings, case, folder, threads, time)
    theirs = tune(peer_arm, peer_settings, case, folder, threads, time)
    own = own_arm(case, folder, threads, mine["setting"])
    peer = peer_arm(case, folder, threads, theirs["setting"])
    in_turn([own, peer], rounds)
    own.close()
    peer.close()
    ratio = own.rate(clock=time) / peer.rate(clock=time)
    return {
        "case": case.to_json(), "threads": threads, "clock": time,
        "etude": {**mine, **own.report()}, "trl": {**theirs, **peer.report()},
        "ratio": round(ratio, 2),
        "ratio_by_round": [round(r, 2) for r in ratios(own, peer, time)],
        "ratio_total_tokens": round(own.rate("total_tokens", time) / peer.rate("total_tokens", time), 2),
        "ratio_wall": round(own.rate() / peer.rate(), 2),
    }  # fmt: skip


def ablate(case: Case, folder: Path, threads: int, rounds: int) -> dict[str, Any]:
    """Speed without each saving, over the speed with all of them, steps taken in turn."""
    arms = {"everything": own_arm(case, folder, threads, {})}
    for saving in SAVINGS:
        arms[f"without {saving}"] = own_arm(case, folder, threads, {}, saving)
    arms["without any"] = own_arm(case, folder, threads, {}, *SAVINGS)
    in_turn(list(arms.values()), rounds)
    whole = arms["everything"]
    time, table = clock(threads), {}
    for name, arm in arms.items():
        arm.close()
        table[name] = {
            "completion_tokens_per_second": round(arm.rate(clock=time), 1),
            "of_everything": round(statistics.median(ratios(arm, whole, time)), 2),
            "seconds": {k: round(min(s[k] for s in arm.steps), 3) for k in ("generate", "update")},
        }
    return table


def main() -> None:
    """Print the JSON; exit 1 if a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ablation", nargs="*", choices=list(CASES), default=[])
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    peer_python("trl")
    result: dict[str, Any] = {"machine": machine("trl", OWN, ["trl", *OWN]), "cases": {}, "ablation": {}}
    with tempfile.TemporaryDirectory() as scratch:
        for name in dict.fromkeys([*chosen.cases, *chosen.ablation]):
            folder = make_model(CASES[name], Path(scratch) / name)
            if name in chosen.cases:
                row, target = compare(CASES[name], folder, chosen.threads, chosen.rounds), TARGETS[name]
                result["cases"][name] = row | {"target": target, "met": row["ratio"] >= target}
                print(f"{name}: {row['ratio']}x (target {target}x)", file=sys.stderr, flush=True)
            if name in chosen.ablation:
                result["ablation"][name] = ablate(CASES[name], folder, chosen.threads, chosen.rounds)
    print(text := json.dumps(result, indent=1))
    if chosen.output:
        chosen.output.write_text(text + "\n")
    sys.exit(0 if all(row["met"] for row in result["cases"].values()) else 1)


if __name__ == "__main__":
    main()
