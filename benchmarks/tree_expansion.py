"""Expanding a node of a search against saying the same continuations one by one.

Both say the same next steps, token for token, after the same nodes: `Trees.branch` as one batch of rows forked from
what was read of the nodes before, the other each with a prompt of its own, which is read again. Processor time, in
turn; the ratio is the median over rounds.

    python benchmarks/tree_expansion.py [--width 8] [--depths 0 8 32 128] [--rounds 7] [--output FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from _machine import processor

from etude.core.slots import Context
from etude.core.streams import Stream
from etude.planners.trees import Node, Trees
from etude.policies.language import LanguagePolicy
from etude.policies.sampling import Sampling
from etude.tasks import resolve_task

TASK, LIMIT = "sums", 3.0


def grown(policy: LanguagePolicy, depth: int, step: int, seed: int) -> tuple[Trees, Node]:
    """A tree of one problem with a node behind `depth` tokens of an answer, whichever they are."""
    task: Any = resolve_task(TASK)
    whole = Sampling(max_tokens=depth + step)
    context = Context(task, policy, Stream(seed), max_tokens=whole.max_tokens)
    trees = Trees([task.problems("train")[seed]], context, whole, Sampling(max_tokens=step))
    (node,) = trees.begin(trees.roots[0], 1)
    node.tokens = torch.randint(3, 200, (depth,), generator=Stream(seed).split("prefix").torch).tolist()
    trees.talk.extend([node.row], [node.tokens])
    node.logp = [0.0] * depth
    return trees, node


def one_by_one(policy: LanguagePolicy, trees: Trees, node: Node, width: int) -> list[list[int]]:
    """The next steps of a node, each generated on its own after all that was said before."""
    before = trees.talk.tokens(node.row)
    return [policy.generate([before], trees.step, [node.draw.child("step", k)])[0].tokens for k in range(width)]


def together(trees: Trees, node: Node, width: int) -> list[list[int]]:
    """The same, as the search says them."""
    (made,) = trees.branch([node], width)
    return [child.tokens[len(node.tokens) :] for child in made]


def case(policy: LanguagePolicy, depth: int, step: int, width: int, rounds: int) -> dict[str, Any]:
    """Ratios of one shape."""
    ratios = []
    for seed in range(rounds + 1):
        trees, node = grown(policy, depth, step, seed)
        begun = time.process_time()
        alone = one_by_one(policy, trees, node, width)
        between = time.process_time()
        said = together(trees, node, width)
        ended = time.process_time()
        if said != alone:
            raise SystemExit(f"behind {depth} tokens, problem {seed}: {said} was said, and one by one {alone}.")
        ratios.append((between - begun) / (ended - between))
    kept = ratios[1:]  # the first makes what is made once
    ratio = statistics.median(kept)
    return {
        "depth": depth, "step": step, "width": width, "ratio": round(ratio, 2), "met": ratio >= LIMIT,
        "by_round": [round(min(kept), 2), round(max(kept), 2)],
    }  # fmt: skip


def main() -> None:
    chosen = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    chosen.add_argument("--model", default="tiny")
    chosen.add_argument("--width", type=int, default=8)
    chosen.add_argument("--depths", type=int, nargs="+", default=[0, 8, 32, 128])
    chosen.add_argument("--steps", type=int, nargs="+", default=[4, 16])
    chosen.add_argument("--rounds", type=int, default=7)
    chosen.add_argument("--output", type=Path, default=None, help="a file for the JSON as well")
    asked = chosen.parse_args()
    torch.set_num_threads(1)
    policy = LanguagePolicy.load(asked.model, device="cpu")
    cases = [(depth, step) for depth in asked.depths for step in asked.steps]
    found = [case(policy, *each, asked.width, asked.rounds) for each in cases]
    about = {"benchmark": "tree_expansion", "processor": processor(), "model": asked.model, "limit": LIMIT}
    text = json.dumps({**about, "cases": found}, indent=1)
    print(text)
    if asked.output:
        asked.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
