"""The claim of rlprompt: prompts that are found, against the best of all, none, and as many tried at random.

A reader learns reviews with cues and labels once, and another one of another shape. Each seed draws the reviews that
prompts are tried on and all that is sampled. Compared is how often the likelier label is right on reviews of the test
behind the greedy prompt; the optimum is the prompt that pays most in training of all pairs of cues.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np
import torch

from etude.core.draws import Draw
from etude.core.kinds import TokenMethod
from etude.core.streams import Stream
from etude.evaluation.pairs import Pair
from etude.experiments.arms import pairs, started, variant
from etude.experiments.cells import Cell, by_label, recorded, spread, trained
from etude.policies.language import LanguagePolicy
from etude.policies.sampling import Sampling
from etude.policies.word_tokenizer import CUES
from etude.rewards.control import AffineScores
from etude.rewards.outcome import TaskReward
from etude.tasks.language.cue_prompts import CuePrompts

TASK, READER, SECOND, TAUGHT = CuePrompts(), "blank:2x64x4@reviews", "blank:1x96x4@reviews", 1500
POLICY, STEPS, TESTED = "blank:2x64x4@cues", 150, 400
CHANGES, RAW = {"optimizer.lr": 1e-3}, (TaskReward(), AffineScores(scale=0.05))
"""Rewards that are not standardised, on the scale of those that are."""


class Searched(NamedTuple):
    """A reader's task of one seed; how many prompts are tried at random, 0 for all pairs of cues."""

    task: CuePrompts
    tries: int


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """Accuracies on the test, by seed."""
    taught = {"optimizer.lr": 2e-3}
    with (
        started(TASK, steps=TAUGHT, start=READER, changes=taught) as first,
        started(TASK, steps=TAUGHT, start=SECOND, changes=taught) as second,
    ):
        tasks = [TASK.replace(reader=first.folder, seed=seed) for seed in seeds]
        arms = {"rlprompt": variant("rlprompt", CHANGES), "raw": variant("rlprompt", CHANGES, rewards=RAW)}
        prompts = {name: written(arm, tasks) for name, arm in arms.items()}
        tries = STEPS * int(arms["rlprompt"].completions or 1)
        for name, count in (("optimum", 0), ("random", tries)):
            prompts[name] = spread(searched, [Searched(task, count) for task in tasks])
        prompts["none"] = [""] * len(seeds)
        right = {k: [accuracy(t, p) for t, p in zip(tasks, found)] for k, found in prompts.items()}
        others = [t.replace(reader=second.folder) for t in tasks]
        again = {k: [accuracy(t, p) for t, p in zip(others, prompts[k])] for k in ("rlprompt", "none")}
    against = {
        "accuracy against the optimum": "optimum", "accuracy against no prompt": "none",
        "accuracy against raw rewards": "raw", "accuracy against random search": "random",
    }  # fmt: skip
    other = "accuracy, second reader, against no prompt"
    return pairs(
        seeds, {**dict.fromkeys(against, right["rlprompt"]), other: again["rlprompt"]},
        {**{measure: right[name] for measure, name in against.items()}, other: again["none"]},
        start={"accuracy against raw rewards": right["none"]},
    )  # fmt: skip


def written(method: TokenMethod, tasks: Iterable[CuePrompts]) -> list[str]:
    """The greedy prompt of a policy after training on each of the tasks, with the task's own seed."""
    cells = [Cell("prompt", method, task, task.seed, STEPS, POLICY) for task in tasks]
    return by_label(["prompt"] * len(cells), spread(greedy, cells))["prompt"]


def greedy(cell: Cell) -> str:
    """What the policy of a run says first of all."""
    return greedy_prompt(trained(cell)[0].policy, cell.task)


def greedy_prompt(policy: LanguagePolicy, task: CuePrompts) -> str:
    """The likeliest prompt, token by token."""
    sampling = Sampling(temperature=0.0, max_tokens=task.max_tokens)
    (said,) = policy.generate([policy.encode(str(task.problems("train")[0].prompt))], sampling, [Draw.at(0)])
    return policy.decode(said.tokens)


def searched(job: Searched) -> str:
    """The prompt that pays most in training, of all pairs of cues or of some drawn at random."""
    return recorded(f"searched {job.task.seed} {job.tries}", [repr(job.task), job.tries], lambda: _searched(job))


def _searched(job: Searched) -> str:
    torch.set_num_threads(1)
    problem = job.task.problems("train")[0]
    every = ["".join(cues) for cues in product(CUES, repeat=2)]
    if job.tries:
        draw = Stream(job.task.seed).split("random search").numpy
        every = [every[i] for i in dict.fromkeys(draw.integers(len(every), size=job.tries).tolist())]
    return max(every, key=lambda prompt: job.task.score(problem, prompt))


def accuracy(task: CuePrompts, prompt: str) -> float:
    """Share of reviews of the test on which the likelier label is right behind this prompt."""
    pool = task.problems("test")
    reviews = [pool[i].info["reviews"][0] for i in range(TESTED)]
    return float(np.mean([gap > 0 for gap in task.gaps(replace(pool[0], info={"reviews": reviews}), prompt)]))
