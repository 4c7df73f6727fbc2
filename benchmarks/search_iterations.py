"""How many expansions a search takes by the global frontier, against one that begins at the root again (DeepSearch).

Trees that are made up, of which everything is known: every step has so many next ones, all answers are as long, and
right are those of the highest worth, which is the sum of a normal number for every step, so that right answers stand
beside each other. No policy, no clock: the same numbers everywhere. Of each tree, on average: expansions until the
first right answer, expansions until `--size` answers were kept, and how many of these are right. Both ways draw the
steps before an end by the same softmax; `--greedy` takes the highest UCT instead.

    python benchmarks/search_iterations.py [--width 3] [--depth 4] [--size 8] [--trees 40] [--greedy] [--output FILE]
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from etude.core.draws import Draw
from etude.core.episodes import StopReason
from etude.methods.rlvr.deepsearch.trees import FromTheRoot, GlobalFrontier, SearchedGroups, _Search
from etude.planners.trees import Node

WAYS = {"frontier": GlobalFrontier(), "root": FromTheRoot()}
SHARES = (0.05, 0.15, 0.3)
"""Of answers that are right."""


def answers(width: int, depth: int, share: float, seed: int) -> set[tuple[int, ...]]:
    """The right ones of a tree."""
    random, worth = np.random.default_rng(seed), {(): 0.0}
    for length in range(1, depth + 1):
        for path in itertools.product(range(width), repeat=length):
            worth[path] = worth[path[:-1]] + float(random.normal())
    whole = sorted((path for path in worth if len(path) == depth), key=lambda path: -worth[path])
    return set(whole[: max(1, round(share * len(whole)))])


def expanded(node: Node, part: SearchedGroups, right: set[tuple[int, ...]]) -> list[Node]:
    """All next steps of a node, each once."""
    for k in range(part.width):
        step = Node(0, node.draw.child("step", k), 0, node, [*node.tokens, k], [*node.logp, -1.0])
        if len(step.tokens) == part.depth:
            step.ended, step.stop = True, StopReason.END_OF_TEXT
            step.value = 1.0 if tuple(step.tokens) in right else -1.0
        node.children.append(step)
    return node.children


def search(part: SearchedGroups, right: set[tuple[int, ...]], size: int, seed: int) -> tuple[int, int, int]:
    """Expansions until the first right answer, and until `size` are kept; how many of these are right."""
    root = Node(0, Draw.at(seed), 0)
    state, count, solved, kept = _Search(root, root), 0, 0, 0
    while state.at is not None and not (solved and kept):
        made, count = expanded(state.at, part, right), count + 1
        state.at = part._after(state, made)
        solved = solved or count * any(node.value == 1.0 for node in made)
        kept = kept or count * (len(state.kept) >= size)
    return solved, kept or count, sum(node.value == 1.0 for node in state.kept[:size])


def compared(share: float, asked: argparse.Namespace) -> dict[str, object]:
    """Means of both ways on the same trees, and of their differences with a standard error."""
    trees = [answers(asked.width, asked.depth, share, seed) for seed in range(asked.trees)]
    fields = {"size": asked.width**asked.depth, "width": asked.width, "depth": asked.depth, "greedy": asked.greedy}
    found = {
        name: [search(SearchedGroups(onward=way, **fields), tree, asked.size, seed) for seed, tree in enumerate(trees)]
        for name, way in WAYS.items()
    }
    told: dict[str, object] = {"share": share}
    for place, measure in enumerate(("until_right", "until_kept", "right_among_kept")):
        less = [a[place] - b[place] for a, b in zip(found["frontier"], found["root"])]
        told[measure] = {name: round(fmean(x[place] for x in rows), 2) for name, rows in found.items()} | {
            "frontier_less_root": [round(fmean(less), 2), round(stdev(less) / len(less) ** 0.5, 2)]
        }
    return told


def main() -> None:
    chosen = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"width": 3, "depth": 4, "size": 8, "trees": 40}.items():
        chosen.add_argument(f"--{name}", type=int, default=value)
    chosen.add_argument("--greedy", action="store_true")
    chosen.add_argument("--output", type=Path, default=None, help="a file for the JSON as well")
    asked = chosen.parse_args()
    settings = {name: value for name, value in vars(asked).items() if name != "output"}
    text = json.dumps(
        {"benchmark": "search_iterations", **settings, "cases": [compared(s, asked) for s in SHARES]}, indent=1
    )
    print(text)
    if asked.output:
        asked.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
