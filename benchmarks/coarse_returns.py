"""What rounding products to bfloat16 does to returns: TD3+BC and IQL on logs of a pendulum, five members, both ways.

Both train on the same logs from the same weights with the same rows drawn, 256-256, batches of 256, 5,000 updates each;
returns are of 20 episodes of likeliest actions. Printed as JSON: each member's return, the mean difference with its 95%
interval over members, and processor time.

    python benchmarks/coarse_returns.py [--methods td3-bc iql] [--output FILE]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _machine import processor
from scipy import stats

from etude.core.edit import set_values
from etude.core.population import Member
from etude.core.registry import get_method
from etude.evaluation.control import play
from etude.experiments.swings import MIXED, swings
from etude.loops.off_policy import BLOCK, OffPolicyLoop
from etude.tasks.control.logged import LoggedTask
from etude.tasks.control.pendulum import pendulum

MEMBERS, UPDATES, PLAYED = 5, 5_000, 20


def trained(name: str, products: str, data: Path) -> dict[str, Any]:
    """Returns of members after training, and processor seconds."""
    method: Any = get_method(name)
    sizes = {"sampling.batch": 256, "sampling.horizon.gamma": 0.98, "optimizer.lr": 1e-3}
    if name == "iql":
        sizes["actor.clone.weight.beta"] = 0.1  # where returns differ by hundreds
    for part in ("policy", "critic", "value"):
        if getattr(method, part) is not None:
            sizes |= {f"{part}.network.hidden": (256, 256), f"{part}.network.products": products}
    task, begun = LoggedTask(data=str(data), environment=pendulum), time.process_time()
    loop = OffPolicyLoop(set_values(method, sizes), task, [Member(s) for s in range(MEMBERS)], UPDATES // BLOCK)
    for _ in range(loop.steps):
        loop.step()
    taken = time.process_time() - begun
    returns = play(loop, task, PLAYED, deterministic=True).mean(-1).tolist()
    return {"returns": [round(x, 1) for x in returns], "processor_seconds": round(taken, 1)}


def main() -> None:
    """Print the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=["td3-bc", "iql"])
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    result: dict[str, Any] = {"cpu": processor(), "torch": torch.__version__, "methods": {}}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "logs.npz"
        np.savez(data, **swings(0, MIXED))  # type: ignore[arg-type]  # of numpy's own stubs
        for name in chosen.methods:
            each = {products: trained(name, products, data) for products in ("float32", "bfloat16")}
            differ = np.subtract(each["bfloat16"]["returns"], each["float32"]["returns"])
            half = stats.t.ppf(0.975, MEMBERS - 1) * stats.sem(differ)
            between = [round(float(differ.mean() + sign * half), 1) for sign in (-1, 1)]
            result["methods"][name] = {**each, "difference": round(float(differ.mean()), 1), "interval": between}
    text = json.dumps(result, indent=1)
    if chosen.output:
        chosen.output.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
