"""What a training step of each method costs, against its parent on the same problems.

Both take their steps in turn from the same policy, with a learning rate so small that it stays as it is; the ratio is
of processor time, the median over rounds. A method should cost at most 1.15 times its parent unless its mechanism asks
for more: `because` says what of that it has (more completions, more passes over each, rows that the parent skips
because comparing them teaches nothing, a reference, a critic, more optimizer steps). `per_token` is the ratio for every
token that is learned from or sampled, where a step of the two has other numbers of them. What is trained by pairs has
`dpo` beside it in place of its parent. Recipes are chains of what is measured here.

    python benchmarks/method_costs.py [--methods maxrl lens] [--rounds 5]
    python benchmarks/method_costs.py --family preference
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from _machine import processor

from etude.core.edit import set_values
from etude.core.errors import EtudeError
from etude.core.kinds import TokenMethod
from etude.core.method import Method
from etude.core.part import Need
from etude.core.registry import family, files, get_method
from etude.loops.language import LanguageLoop
from etude.objectives.pairs import PairLoss
from etude.policies.language import LanguagePolicy
from etude.tasks import resolve_task

TASKS = {"rlvr": "compose", "preference": "digest"}
LIMIT = 1.15
MODELS = ("rewards.reward-model.model", "rewards.dpo-token-reward.whose.model", "reference.models", "critic.model")
"""Fields that a trained model is to be named by, some of them in a method."""
PROBLEMS = 32
"""Of a step of those who learn from pairs or by a trained model, whatever number is theirs."""
SUMMED = ("rows", "rows_skipped", "tokens")


def loop_of(method: Method, rounds: int, task: str = TASKS["rlvr"], model: str = "") -> LanguageLoop:
    """A loop of the method; `model` is the folder of a trained one, for whoever needs it."""
    played: Any = resolve_task(task)
    policy = LanguagePolicy.load("tiny", device="cpu")
    made = set_values(method, {"optimizer.lr": 1e-9, **({"problems": PROBLEMS} if model else {})})
    for field in MODELS if model else ():
        with suppress(EtudeError):  # which has no such field
            made = set_values(made, {field: model})
    return LanguageLoop(made, played, policy, seed=0, steps=rounds + 1)


def timed(loop: LanguageLoop) -> tuple[float, dict[str, float]]:
    """Seconds of processor time of a step, and its metrics."""
    begun = time.process_time()
    metrics = loop.step().metrics
    taken = time.process_time() - begun
    tokens = metrics.get("sampled_tokens", metrics["rows"] * metrics["completion_length"])
    return taken, {**metrics, "tokens": tokens}


def reasons(method: Method, parent: Method, metrics: dict[str, dict[str, float]]) -> list[str]:
    """What a method's mechanism does that its parent's does not."""
    found = []
    mine, theirs = metrics["method"], metrics["parent"]
    if mine["rows"] > 1.05 * theirs["rows"]:
        found.append(f"{mine['rows'] / theirs['rows']:.2f}x completions")
    if mine["tokens"] > 1.05 * theirs["tokens"]:
        found.append(f"{mine['tokens'] / theirs['tokens']:.2f}x tokens")
    if method.epochs > parent.epochs:
        found.append(f"{method.epochs} passes")
    if mine.get("rows_skipped", 0.0) < theirs.get("rows_skipped", 0.0) - 0.05:
        found.append("learns from rows that the parent skips")
    if method.reference is not None and parent.reference is None:
        found.append("a forward pass for a reference")
    if any(Need.REFERENCE in part.needs for part in method.slots()["rewards"]):
        found.append("a pass of its own, by policy and reference")
    if method.critic is not None and parent.critic is None:
        found.append("a critic")
    if method.epochs * method.minibatches > parent.epochs * parent.minibatches:
        found.append(f"{method.epochs * method.minibatches} updates")
    return found


def beside(method: Method) -> Method:
    """What a method is held against."""
    samples = method.experience is not None and method.experience.samples
    paired = isinstance(method.objective, PairLoss) and not samples and method.id != "dpo"
    return get_method("dpo" if paired else str(method.parent))


def cost(name: str, rounds: int, task: str, model: str) -> dict[str, Any]:
    method = get_method(name)
    parent = beside(method)
    loops = {"method": loop_of(method, rounds, task, model), "parent": loop_of(parent, rounds, task, model)}
    for loop in loops.values():
        loop.step()  # what is made once
    seconds: dict[str, list[float]] = {k: [] for k in loops}
    sums: dict[str, dict[str, float]] = {k: {} for k in loops}
    for _ in range(rounds):
        for k, loop in loops.items():
            taken, metrics = timed(loop)
            seconds[k].append(taken)
            for m in SUMMED:
                sums[k][m] = sums[k].get(m, 0.0) + metrics.get(m, 0.0) / rounds
    ratios = [a / b for a, b in zip(seconds["method"], seconds["parent"])]
    ratio, because = statistics.median(ratios), reasons(method, parent, sums)
    return {
        "method": name, "beside": parent.id, "ratio": round(ratio, 2),
        "per_token": round(ratio * sums["parent"]["tokens"] / max(sums["method"]["tokens"], 1.0), 2),
        "because": because, "met": ratio <= LIMIT or bool(because), "by_round": [round(r, 2) for r in ratios],
    }  # fmt: skip


def measured(names: list[str], rounds: int, task: str, model: str) -> list[dict[str, Any]]:
    """Costs, and why some have none: what they need that the task has not, in their own words."""
    found: list[dict[str, Any]] = []
    for name in names:
        method = get_method(name)
        if method.row == "theory" or not isinstance(method, TokenMethod) or None in (method.experience, method.parent):
            continue
        try:
            found.append(cost(name, rounds, task, model))
        except EtudeError as error:
            found.append({"method": name, "left_out": str(error)})
        print(json.dumps(found[-1]), flush=True)
    return found


def scorer(folder: Path, task: str) -> str:
    """The folder of a reward model of the task's pairs, after a step."""
    played: Any = resolve_task(task)
    policy = LanguagePolicy.load("tiny", device="cpu")
    LanguageLoop(get_method("reward-model"), played, policy, seed=0, steps=1).step()
    policy.save(folder)
    return str(folder)


def main() -> None:
    chosen = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    chosen.add_argument("--family", default="rlvr", choices=list(TASKS))
    chosen.add_argument("--methods", nargs="*", default=None)
    chosen.add_argument("--rounds", type=int, default=5)
    chosen.add_argument("--output", type=Path, default=None, help="a file for the JSON as well")
    options = chosen.parse_args()
    torch.set_num_threads(1)
    names = options.methods or [n for n in files("methods") if family("methods", n) == options.family]
    task = TASKS[options.family]
    with tempfile.TemporaryDirectory() as folder:
        model = scorer(Path(folder), task) if options.family == "preference" else ""
        found = measured(names, options.rounds, task, model)
    about = {"benchmark": "method_costs", "family": options.family, "limit": LIMIT, "processor": processor()}
    told = json.dumps({**about, "methods": found}, indent=1)
    print(told)
    if options.output:
        options.output.write_text(told + "\n")
    sys.exit(int(not all(f.get("met", True) for f in found)))


if __name__ == "__main__":
    main()
