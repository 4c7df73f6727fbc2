"""A group's update against the length of its prompt, the size of the group and the length of its answers.

For each case, in a process of its own: processor time of a gradient per answer token, the most memory that it took
beside what was there before it, and the most tokens that the plan of micro-batches says are held at a time. `before` is
without the two savings that long prompts need: micro-batches that count a shared prompt once, and attention to it as
one block. The model is that of 0.8 M parameters (`_cases.py`), with random weights and tokens.

    python benchmarks/shared_prompts.py [--prompts 128 1024] [--groups 4 8] [--output FILE] [--picture FILE.svg]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PROMPTS = (128, 512, 1024, 2048, 4096, 8192)
GROUPS = (4, 8, 16, 64, 256)
ANSWERS = (16, 64, 256, 1024)
USUAL = {"prompt": 2048, "group": 8, "answer": 64}
BUDGET = 8192
"""The default of `--micro-tokens`."""
LIMIT = 150.0
"""Seconds of one gradient before the savings beyond which it is not measured."""


def batch(prompt: int, group: int, answer: int) -> Any:
    """One prompt and its answers, all of the same length, each token a random one."""
    import torch

    from etude.core.episodes import Episode, Problem, Segment
    from etude.core.rows import to_batch

    random = torch.Generator().manual_seed(0)

    def tokens(count: int) -> list[int]:
        return torch.randint(3, 500, (count,), generator=random).tolist()

    asked = tokens(prompt)
    said = [tokens(answer) for _ in range(group)]
    none, all_of_it = [0] * prompt, [1] * answer
    episodes = [
        Episode(
            Problem("p", ""),
            [Segment("user", "", asked, none, [0.0] * prompt), Segment("assistant", "", s, all_of_it, [-6.0] * answer)],
        )
        for s in said
    ]
    return to_batch(episodes, 0, 1.0, torch.device("cpu"))


def measure(folder: str, prompt: int, group: int, answer: int, without: list[str]) -> dict[str, float]:
    """Time and memory of a gradient over one group, in this process alone."""
    import torch
    from _own import remove

    from etude.core.micro_batches import Rows
    from etude.policies import micro_batches
    from etude.policies.language import LanguagePolicy

    torch.set_num_threads(1)
    policy = LanguagePolicy.load(folder, device="cpu")
    for saving in without:
        remove(saving, None)
    rows = batch(prompt, group, answer)

    def gradient(these: Any) -> None:
        for piece in micro_batches.micro_batches(policy, these, BUDGET):
            policy.evaluate(these.rows(piece, trim=True)).logp.sum().backward()

    gradient(batch(8, 2, 8))  # what is made once
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    taken = []
    while len(taken) < 3 and sum(taken) < 20:
        begun = time.process_time()
        gradient(rows)
        taken.append(time.process_time() - begun)
    held = Rows.of(rows, micro_batches.copied(policy) or 0.0)
    return {
        "us_per_token": round(1e6 * min(taken) / group / answer, 1),
        "MiB": round((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, 1),
        "planned": planned(policy, rows, held),
    }


def planned(policy: Any, rows: Any, held: Any) -> float:
    """Most tokens that the plan says are held at a time."""
    import numpy as np

    from etude.core.micro_batches import plan
    from etude.policies import micro_batches

    found = 0.0
    copied = micro_batches.copied(policy)
    for together in plan(rows, BUDGET, False, copied):
        pieces = [np.asarray(p) for p in together]
        if copied is None:
            found = max(found, *(float(len(p) * held.lengths[p].max()) for p in pieces))
        elif len(pieces) == 1:
            found = max(found, held.held(pieces[0]))
        else:
            widest = int(held.starts.max())
            found = max(found, *(widest + held.answers(p, widest) for p in pieces))
    return found


def alone(folder: Path, case: dict[str, int], without: tuple[str, ...]) -> dict[str, float]:
    """One measurement in a process of its own, so that its peak memory is its own."""
    flags = [f"--without={s}" for s in without]
    sizes = [str(case[k]) for k in ("prompt", "group", "answer")]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, "--one", str(folder), *sizes, *flags], capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


OLD = ("planned-prompts", "prompt-blocks")


def both(folder: Path, case: dict[str, int]) -> dict[str, Any]:
    """A case before and after, and what was planned; what would take too long before is not measured."""
    after = alone(folder, case, ())
    row: dict[str, Any] = {**case, "after": after, "before": None}
    again = case["prompt"] * case["group"] / (BUDGET // 4) / 1000  # prompts are computed for one row each
    if again * case["prompt"] / 1000 < LIMIT:
        row["before"] = alone(folder, case, OLD)
        row["ratio"] = round(row["before"]["us_per_token"] / after["us_per_token"], 2)
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def main() -> None:
    """Print the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, nargs="*", default=list(PROMPTS))
    parser.add_argument("--groups", type=int, nargs="*", default=list(GROUPS))
    parser.add_argument("--answers", type=int, nargs="*", default=list(ANSWERS))
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--without", action="append", default=[], help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(measure(chosen.one[0], *map(int, chosen.one[1:]), chosen.without)))
        return
    from _cases import CASES, make_model

    with tempfile.TemporaryDirectory() as scratch:
        folder = make_model(CASES["long-0.8M"], Path(scratch))
        table = [
            both(folder, {**USUAL, "prompt": prompt, "group": group})
            for prompt in chosen.prompts
            for group in chosen.groups
        ]
        answers = [both(folder, {**USUAL, "answer": answer}) for answer in chosen.answers]
    print(text := json.dumps({"budget": BUDGET, "prompts and groups": table, "answers": answers}, indent=1))
    if chosen.output:
        chosen.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
