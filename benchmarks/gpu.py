"""A GRPO training step on a GPU, etude against TRL: one JSON with tokens per second, GiB of memory, and their ratio.

    python benchmarks/gpu.py [--cases short-0.5B long-0.5B short-1.5B] [--rows 8 32 0] [--rounds 5] [--output FILE]

Random models of the shapes that their names say, weights in float32 and the rest in bfloat16; both arms get the same
folder, prompts, reward, group size and optimizer, and take their steps in turn (A B A B ...). Ratios are of wall time.
TRL runs at the fastest of some sizes of a forward pass, with transformers' own generation. What does not fit is said
in the row. `--device cpu --cases check-0.8M` tries the script where there is no GPU, and measures nothing of use.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from _arms import machine, peer_python
from _cases import GPU_CASES, make_model
from grpo_vs_trl import OWN, compare


def gpu(device: str) -> dict[str, Any]:
    """Which device this is."""
    import torch

    if not device.startswith("cuda"):
        return {"device": device}
    if not torch.cuda.is_available():
        raise SystemExit("There is no CUDA device here; --device cpu --cases check-0.8M tries the script alone.")
    found = torch.cuda.get_device_properties(device)
    return {"device": found.name, "memory": round(found.total_memory / 2**30, 1), "cuda": torch.version.cuda}


def row(name: str, scratch: Path, device: str, rounds: int, tried: list[int]) -> dict[str, Any]:
    """What was found for one case, or why nothing was."""
    case = GPU_CASES[name]
    folder = make_model(case, scratch / name)
    own = [{"dtype": "autocast", "device": device}]
    peer = [{"dtype": "autocast", "device": device, "rows": rows} for rows in tried if rows < case.completions]
    try:
        return compare(case, folder, 1, rounds, own, peer, time="seconds")
    except SystemExit as ended:  # an arm that ran out of memory, with the end of its traceback
        return {"failed": str(ended)}


def main() -> None:
    """Print the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shown = [name for name in GPU_CASES if not name.startswith("check")]
    parser.add_argument("--cases", nargs="+", choices=list(GPU_CASES), default=shown)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows", nargs="+", type=int, default=[8, 32, 0], help="of one forward pass of TRL's; 0: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    where = gpu(chosen.device)
    peer_python("trl")
    result: dict[str, Any] = {"machine": {**machine("trl", OWN, ["trl", *OWN]), **where}, "cases": {}}
    for name in chosen.cases:
        with tempfile.TemporaryDirectory() as scratch:
            result["cases"][name] = row(name, Path(scratch), chosen.device, chosen.rounds, chosen.rows)
        text = json.dumps(result, indent=1)
        if chosen.output:
            chosen.output.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
