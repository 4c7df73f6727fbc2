"""What reinforcement does to a model that has read a tree's facts, against supervised answers (arXiv:2511.05933).

Each seed is one tree, one model made from nothing, and four checkpoints of it: `base` has read the facts and has seen
careless people answer questions about some leaves, bare or after spelling the way out; `sft` learned right answers;
`rl` learned from 0/1 rewards; `distilled` learned what `rl` says where it is right. All are asked about the leaves that
were left out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike

from etude.core.episodes import Problem, Segment
from etude.core.kinds import TokenMethod
from etude.core.streams import Stream
from etude.evaluation.pairs import Pair
from etude.evaluation.paths import path_matching
from etude.experiments.arms import START, pairs, variant
from etude.experiments.cells import Cell, folder_name, model_folder, recorded, spread, trained
from etude.tasks.language.hierarchy import Exercise, Hierarchy, Style, named, worked

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy

MODEL = "blank:3x48x4"
READING, ANSWERS, STEPS = 700, 100, 50
"""Steps of pre-training, of supervised answers, and of reinforcement."""
BATCH, RATE = 64, 4e-3
"""Texts read in a step, and the learning rate of reading."""
KINDS: tuple[Exercise, ...] = ("pick", "lca")
SAMPLES, PROBLEMS = 5, 120
STYLES: tuple[Style, ...] = ("plain", "thought", "structured")
BARE = {"plain": 0.7, "thought": 0.3, "structured": 0.0}
"""How often careless people answer at once, by what they are asked to do; otherwise they spell a way out."""
WHOLE = 0.6
"""How often the way that they spell is whole; they guess otherwise."""


# The model that has read


def careless(task: Hierarchy, problem: Problem, random: Generator) -> str:
    """An answer by somebody who guesses, or spells the way out, or breaks off doing so and guesses."""
    style = task.style
    if random.random() < BARE[style]:
        return guess(task, problem, random)
    text = worked(problem, style)
    if random.random() < WHOLE:
        return text
    way = text.rpartition(">")[0].split(";")
    kept = way[: int(random.integers(1, len(way) + 1))]
    return ";".join(kept) + ">" + guess(task, problem, random)


def guess(task: Hierarchy, problem: Problem, random: Generator) -> str:
    """Any of the options; where there are none, any inner nodes, as many as are asked for."""
    question = str(problem.info["question"])
    if problem.info["kind"] == "pick":
        return str(random.choice(question.partition("?")[2].split(",")))
    inner = [name for code, name in task.names.items() if len(code) < task.depth]
    return ",".join(random.choice(inner, size=problem.answer.count(",") + 1, replace=False))


def reading(task: Hierarchy, seed: int) -> list[list[Segment]]:
    """What the base model reads: facts, alone and in lists, and questions about the leaves that are not held out."""
    random = Stream(seed).split("reading").numpy
    codes = [f for f in task.facts() if str(f.prompt).endswith("=")]
    parents = [f for f in task.facts() if str(f.prompt).endswith("<")]
    found = [[Segment("user", str(f.prompt)), Segment("assistant", str(f.answer))] for f in 30 * codes + 6 * parents]
    for _ in range(12 * len(codes)):
        first, *rest = (codes[k] for k in random.integers(len(codes), size=3))
        text = ";".join([str(first.answer), *(f"{f.prompt}{f.answer}" for f in rest)])
        found.append([Segment("user", str(first.prompt)), Segment("assistant", text)])
    for style in STYLES:
        asked = task.replace(style=style)
        for problem in asked.problems("train")[:1000]:
            said = careless(asked, problem, random)
            found.append([Segment("user", str(problem.prompt)), Segment("assistant", said)])
    return found


def read(policy: LanguagePolicy, task: Hierarchy, seed: int) -> None:
    """Pre-train with warm-up and cosine."""
    import torch
    from transformers import LlamaForCausalLM

    from etude.policies.worked_examples import accumulate, rows

    assert isinstance(policy.model, LlamaForCausalLM)
    data, stream = rows(policy.tokenizer, reading(task, seed)), Stream(seed).split("order").numpy
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    for step in range(READING):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / 50) * (0.525 + 0.475 * math.cos(math.pi * step / READING))
        accumulate(policy.model, [data[i] for i in stream.integers(len(data), size=BATCH)])
        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


# Its checkpoints


def said_right(policy: LanguagePolicy, task: Hierarchy, seed: int) -> list[Problem]:
    """Training problems with what the policy said, where that was right."""
    from etude.evaluation.language import evaluate_split

    looked = evaluate_split(policy, task, "train", problems=400, samples=1, seed=seed)
    right = [row[0] for row, ok in zip(looked.episodes, looked.correct[:, 0]) if ok]
    return [
        Problem(e.problem.id, e.problem.prompt, e.problem.answer, e.problem.level, {"demonstration": e.completion})
        for e in right
    ]


def checkpoints(task: Hierarchy, seed: int) -> dict[str, LanguagePolicy]:
    """base, sft, rl and distilled, as policies; the last three are runs that start from the folder of the first."""
    from etude.policies.language import LanguagePolicy

    matters = [repr(task), seed, MODEL, READING, BATCH, RATE, BARE, WHOLE]
    with model_folder(folder_name(f"base {seed}", matters)) as start:
        recorded(f"base {seed}", matters, lambda: save_base(task, seed, start))

        def after(name: str, method: TokenMethod, steps: int, pool: Sequence[Problem] | None = None) -> LanguagePolicy:
            return trained(Cell(name, method, task, seed, steps, str(start), pool))[0].policy

        supervised = variant("sft", {"optimizer.lr": 1e-3, "problems": 32})
        rewarded = variant("rl-knowledge-traversal", {"optimizer.lr": 1e-3, "problems": 24})
        found = {"base": LanguagePolicy.load(str(start), device="cpu"), "sft": after("sft", supervised, ANSWERS)}
        found["rl"] = after("rl", rewarded, STEPS)
        found["distilled"] = after("distilled", supervised, ANSWERS, said_right(found["rl"], task, seed))
    return found


def save_base(task: Hierarchy, seed: int, folder: Path) -> int:
    """Make a model from nothing that has read, and save it; how many weights it has."""
    import torch

    from etude.policies.language import LanguagePolicy

    base = LanguagePolicy.load(MODEL, device="cpu")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        base.model.apply(base.model._init_weights)
    read(base, task, seed)
    base.save(folder)
    return sum(p.numel() for p in base.model.parameters())


# What they know


def consistency(correct: ArrayLike) -> dict[str, float]:
    """Share of problems of which all, most, few or none of the samples [problems, samples] were right."""
    rates = np.asarray(correct, dtype=np.float64).mean(1)
    names = ["all" if r == 1 else "none" if r == 0 else "most" if r > 0.5 else "few" for r in rates]
    counts = Counter(names)
    return {name: counts[name] / len(names) for name in ("all", "most", "few", "none")}


ASKED: dict[str, tuple[Style, ...]] = {"base": ("plain",), "sft": STYLES, "rl": STYLES, "distilled": ("plain",)}
"""What each checkpoint is asked to do."""


def asked(policy: LanguagePolicy, task: Hierarchy, style: Style) -> dict[str, float]:
    """Majority accuracy, Path Matching Score of heavy questions, and the share of problems of which every sample is
    right, on the leaves that were held out."""
    from etude.evaluation.language import evaluate_split
    from etude.evaluation.pass_at_k import maj_at_k

    looked = evaluate_split(
        policy, task.replace(style=style), "heldout", problems=PROBLEMS, samples=SAMPLES, seed=START
    )
    votes = maj_at_k(looked.correct, looked.answers, SAMPLES)
    problems = [row[0].problem for row in looked.episodes]
    paths = [p.info["path"] for p in problems]
    scores = np.array(
        [[path_matching(named(e.completion), path) for e in row] for row, path in zip(looked.episodes, paths)]
    ).mean(1)
    heavy = np.array([p.level == "heavy" for p in problems])
    always = consistency(looked.correct)["all"]
    return {"majority": float(votes.mean()), "heavy paths": float(scores[heavy].mean()), "always": always}


def forms(task: Hierarchy) -> tuple[list[str], list[str]]:
    """Questions about held-out leaves, and statements of the same codes and names."""
    picks = task.replace(kinds=("pick",), style="plain").problems("heldout")[:PROBLEMS]
    return [str(p.prompt) for p in picks], [f"{p.info['codes'][-1]}={p.answer}" for p in picks]


def study(seed: int) -> dict[str, Any]:
    """One seed: its checkpoints asked in their styles, and how alike two of them see questions and statements."""
    import torch

    from etude.evaluation.representations import between_models

    torch.set_num_threads(1)
    task = Hierarchy(seed=seed, kinds=KINDS)
    found = checkpoints(task, seed)
    texts = dict(zip(("questions", "statements"), forms(task)))
    return {
        "asked": {name: {style: asked(found[name], task, style) for style in styles} for name, styles in ASKED.items()},
        **{k: float(between_models(found["sft"], found["rl"], said)[1:-1].mean()) for k, said in texts.items()},
    }


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """Reinforcement against supervised answers on leaves that were only read about."""
    runs = spread(study, seeds)

    def of(name: str, style: Style, key: str = "majority") -> list[float]:
        return [r["asked"][name][style][key] for r in runs]

    lead = {s: [a - b for a, b in zip(of("rl", s), of("sft", s))] for s in ("plain", "structured")}
    arm = {
        "majority": of("rl", "plain"), "heavy paths": of("rl", "thought", "heavy paths"),
        "similarity of statements": [r["statements"] for r in runs], "lead, structured": lead["structured"],
        "majority, distilled": of("distilled", "plain"), "always right": of("rl", "plain", "always"),
    }  # fmt: skip
    baseline = {
        "majority": of("sft", "plain"), "heavy paths": of("sft", "thought", "heavy paths"),
        "similarity of statements": [r["questions"] for r in runs], "lead, structured": [x / 2 for x in lead["plain"]],
        "majority, distilled": of("sft", "plain"), "always right": of("sft", "plain", "always"),
    }  # fmt: skip
    return pairs(seeds, arm, baseline, start={"majority": of("base", "plain")})
