"""A group's gradient against the length of its prompt, the size of the group and the length of its answers.

For each case, in a process of its own: processor time per answer token, the most memory that it took beside what was
there before, and the most tokens that the plan of micro-batches counts at a time. `before` is without the two savings
that long prompts need: micro-batches that count a shared prompt once, and attention to it as one block; it is left out
where it would take long. The model is that of 0.8 M parameters (`_cases.py`), with random weights and tokens.

    python benchmarks/shared_prompts.py [--prompts 128 1024] [--groups 4 8] [--output FILE] [--picture FILE.png]
    python benchmarks/shared_prompts.py --from FILE --picture FILE.png
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROMPTS = (128, 512, 2048, 4096, 8192)
GROUPS = (4, 8, 64, 256)
ANSWERS = (16, 256, 1024)
USUAL = {"prompt": 2048, "group": 8, "answer": 64}
BUDGET = 8192
"""The default of `--micro-tokens`."""
OLD = ("planned-prompts", "prompt-blocks")
"""The savings that `before` is without."""
PATIENCE = 14.0
"""Seconds that a gradient may take before the savings, as far as can be told, to be measured."""


def batch(prompt: int, group: int, answer: int) -> Any:
    """One prompt and its answers, all of the same length, each token a random one."""
    import torch

    from etude.core.episodes import Episode, Problem, Segment
    from etude.core.rows import to_batch

    random = torch.Generator().manual_seed(0)

    def segment(role: str, count: int, said: int) -> Segment:
        tokens = torch.randint(3, 500, (count,), generator=random).tolist()
        return Segment(role, "", tokens, [said] * count, [-6.0 * said] * count)

    asked = segment("user", prompt, 0)
    episodes = [Episode(Problem("p", ""), [asked, segment("assistant", answer, 1)]) for _ in range(group)]
    return to_batch(episodes, 0, 1.0, torch.device("cpu"))


def measure(policy: Any, case: dict[str, int], without: tuple[str, ...]) -> dict[str, float]:
    """Time and memory of a gradient over one group, in this process alone."""
    from _own import remove

    from etude.policies.micro_batches import micro_batches

    for saving in without:
        remove(saving, None)
    rows = batch(**case)

    def gradient(these: Any) -> None:
        for piece in micro_batches(policy, these, BUDGET):
            policy.evaluate(these.rows(piece, trim=True)).logp.sum().backward()

    gradient(batch(8, 2, 8))  # what is made once
    begun_with = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    taken: list[float] = []
    while len(taken) < 3 and sum(taken) < 4:
        begun = time.process_time()
        gradient(rows)
        taken.append(time.process_time() - begun)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - begun_with
    return {
        "us_per_token": round(1e6 * min(taken) / case["group"] / case["answer"], 1),
        "MiB": round(grown / 1024, 1),
        "planned": max(planned(policy, rows)),
    }


def planned(policy: Any, batch: Any) -> Iterator[float]:
    """Tokens that the plan counts while each micro-batch is held."""
    from etude.core.micro_batches import Rows, Sharing, plan
    from etude.policies import micro_batches

    sharing = micro_batches.sharing(policy)
    rows = Rows.of(batch, sharing or Sharing())
    for together in plan(batch, BUDGET, False, sharing):
        for piece in (p.numpy() for p in together):
            prompt = int(rows.starts[piece].max())
            if sharing is None:
                yield float(len(piece) * rows.lengths[piece].max())
            else:
                yield rows.held(piece) if len(together) == 1 else prompt + rows.answers(piece, prompt)


def alone(policy: Any, case: dict[str, int], without: tuple[str, ...]) -> dict[str, float]:
    """One measurement in a process of its own, so that its peak memory is its own."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            with os.fdopen(writing, "w") as said:
                json.dump(measure(policy, case, without), said)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as heard:
        text = heard.read()
    if os.waitpid(child, 0)[1]:
        raise SystemExit(f"{case} could not be measured.")
    found: dict[str, float] = json.loads(text)
    return found


def row(policy: Any, **changes: int) -> dict[str, Any]:
    """A case before and after."""
    case = {**USUAL, **changes}
    found: dict[str, Any] = {**case, "after": alone(policy, case, ()), "before": None}
    repeated = min(1.0, (case["prompt"] + case["answer"]) / BUDGET * 2)  # how much of a row's prompt is computed again
    if case["group"] * repeated * (case["prompt"] / 4096) ** 2 * 0.9 <= PATIENCE:
        found["before"] = alone(policy, case, OLD)
        found["ratio"] = round(found["before"]["us_per_token"] / found["after"]["us_per_token"], 2)
    print(json.dumps(found), file=sys.stderr, flush=True)
    return found


def picture(found: dict[str, Any], path: Path) -> None:
    """Time per token and memory against prompt, group and answer length, before and after."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    figure = Figure(figsize=(10.5, 6.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 3)
    sweeps = {
        "prompt": [r for r in found["prompts and groups"] if r["group"] == USUAL["group"]],
        "group": [r for r in found["prompts and groups"] if r["prompt"] == USUAL["prompt"]],
        "answer": sorted(
            [*found["answers"], *(r for r in found["prompts and groups"] if all(r[k] == v for k, v in USUAL.items()))],
            key=lambda r: r["answer"],
        ),
    }
    if not all(sweeps.values()):
        raise SystemExit(f"A picture needs {', '.join(f'{k} {v}' for k, v in USUAL.items())} among what is measured.")
    for column, (name, rows) in enumerate(sweeps.items()):
        others = ", ".join(f"{k} {v:,}" for k, v in USUAL.items() if k != name)
        axes[0, column].set_title(others, fontsize=10)
        for line, what in enumerate(("us_per_token", "MiB")):
            axis = axes[line, column]
            for when, colour in (("before", "#b0532c"), ("after", "#2c6fb0")):
                points = [(r[name], r[when][what]) for r in rows if r[when]]
                axis.plot(*zip(*points), marker="o", markersize=4, color=colour, label=when)
            axis.set_xscale("log", base=2)
            axis.set_xticks([r[name] for r in rows], [f"{r[name]:,}" for r in rows], minor=False)
            if not line:
                axis.set_yscale("log")
                axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                axis.yaxis.set_minor_formatter(NullFormatter())
            else:
                axis.set_ylim(0)
            axis.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
            axis.tick_params(labelsize=8)
            axis.grid(alpha=0.3)
            axis.set_xlabel(
                {"prompt": "tokens of the prompt", "group": "answers", "answer": "tokens of an answer"}[name]
            )
        axes[0, column].set_ylabel("microseconds per answer token")
        axes[1, column].set_ylabel("peak memory, MiB")
    axes[0, 0].legend(frameon=False)
    figure.savefig(path, dpi=110)


def table(found: dict[str, Any]) -> str:
    """Prompts against groups as Markdown: microseconds per answer token and MiB after, and how many times less."""
    groups = sorted({r["group"] for r in found["prompts and groups"]})
    lines = ["| prompt | " + " | ".join(f"{g} answers" for g in groups) + " |", "|---" * (len(groups) + 1) + "|"]
    for prompt in sorted({r["prompt"] for r in found["prompts and groups"]}):
        cells = []
        for r in (r for r in found["prompts and groups"] if r["prompt"] == prompt):
            gain = f", {r['ratio']:.1f}x" if r["before"] else ""
            cells.append(f"{r['after']['us_per_token']:,.0f} us, {r['after']['MiB']:,.0f} MiB{gain}")
        lines.append(f"| {prompt:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def measured(prompts: list[int], groups: list[int], answers: list[int]) -> dict[str, Any]:
    """All cases."""
    import torch
    from _cases import CASES, make_model

    from etude.policies.language import LanguagePolicy

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        policy = LanguagePolicy.load(str(make_model(CASES["long-0.8M"], Path(scratch))), device="cpu")
        return {
            "budget": BUDGET,
            "prompts and groups": [row(policy, prompt=p, group=g) for p in prompts for g in groups],
            "answers": [row(policy, answer=a) for a in answers],
        }


def main() -> None:
    """Print the table; the JSON goes to `--output`, the picture to `--picture`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, nargs="*", default=list(PROMPTS))
    parser.add_argument("--groups", type=int, nargs="*", default=list(GROUPS))
    parser.add_argument("--answers", type=int, nargs="*", default=list(ANSWERS))
    parser.add_argument("--from", type=Path, dest="earlier", help="what was measured before")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--picture", type=Path)
    chosen = parser.parse_args()
    if chosen.earlier:
        found = json.loads(chosen.earlier.read_text())
    else:
        found = measured(chosen.prompts, chosen.groups, chosen.answers)
    print(table(found))
    if chosen.output:
        chosen.output.write_text(json.dumps(found, indent=1) + "\n")
    if chosen.picture:
        picture(found, chosen.picture)


if __name__ == "__main__":
    main()
