"""DERL's claim: formulas tried on short inner runs over enumerable answers, one of their primitives misleading."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from etude.core.episodes import Problem
from etude.core.kinds import TokenMethod
from etude.core.streams import Stream
from etude.experiments.arms import SEEDS as FIRST
from etude.experiments.arms import Question, findings, variant
from etude.experiments.cells import recorded, spread
from etude.loops.enumerable import EnumerableLoop
from etude.methods.rlvr.derl.formulas import FormulaPolicy
from etude.methods.rlvr.derl.reward import FormulaReward, evaluate, parse
from etude.tasks.tabular.enumerable import Enumerable

SEEDS = 64
ITERATIONS, GROUP = 8, 4
INNER, FINAL = 30, 60
"""Training steps of an inner run and of the policy that is trained with the best formula."""
PRIMITIVES = FormulaReward(primitives=("outcome", "format", "soft", "length"))
OUTCOME, AVERAGE = "g1", "0.25*g1+0.25*g2+0.25*g3+0.25*g4"
USEFUL = 3
"""The first so many primitives help; the last, length, does not."""


class Answers(Enumerable):
    """Say the marker 1, then the prompt's two letters (2 3, or 3 2), then end with 0: 1 in 256 for a uniform policy.

    An answer is what stands between the last marker and the end.
    """

    id: ClassVar[str] = "answers"

    def problems(self, split: str) -> Sequence[Problem]:
        return [Problem(p.id, p.prompt, ("2 3", "3 2")[x % 2], p.level) for x, p in enumerate(super().problems(split))]

    def answer(self, completion: str) -> str:
        marked, _, said = completion.rpartition("1")
        return said.replace("0", "").strip() if marked or "1" in completion else ""

    def table(self, responses: int) -> Tensor:
        rewards = torch.zeros(self.prompts, responses, dtype=torch.float64)
        for row, path in enumerate(self.policy().tokens.tolist()):
            for x in range(self.prompts):
                rewards[x, row] = float(path[:4] == [1, 2 + x % 2, 3 - x % 2, 0])
        return rewards


TASK = Answers(prompts=2, vocabulary=4, length=5, ends=True, spread=0.5)


def experiment() -> dict[str, Any]:
    """DERL, random search over as many formulas, the outcome alone and the mean of the primitives."""
    half = SEEDS // 2
    parts = spread(_search, [range(FIRST, FIRST + half), range(FIRST + half, FIRST + SEEDS)])
    final = {k: [x for p in parts for x in p["final"][k]] for k in parts[0]["final"]}
    paying = {k: [x for p in parts for x in p["paying"][k]] for k in parts[0]["paying"]}
    best = {k: [x for p in parts for x in p["best"][k]] for k in parts[0]["best"]}

    def pair(scores: dict[str, list[float]], first: str, second: str) -> dict[str, list[float]]:
        return {first: scores[first], second: scores[second]}

    return findings(
        [
            Question("Success of the final policy, against the outcome alone", pair(final, "derl", "outcome")),
            Question("against the mean of the primitives", pair(final, "derl", "average")),
            Question("Success of the final policy, against random search", pair(final, "derl", "random search")),
            Question("Share of written formulas that pay more for something useful than for length",
                     pair(paying, "last", "first")),
        ],
        task="enumerable answers", steps=FINAL, seeds=SEEDS, metric="success",
        inner_runs=ITERATIONS * GROUP, formulas=best,
    )  # fmt: skip


def _search(seeds: Sequence[int]) -> dict[str, Any]:
    """Both searches for every seed, and the policies that are trained with what they found."""
    torch.set_num_threads(1)
    search = Search(seeds)
    writers = [FormulaPolicy().bind() for _ in seeds]
    for writer, seed in zip(writers, seeds):
        writer.begin(Stream(seed))
    first = [paying(w, seed) for w, seed in zip(writers, seeds)]
    random = search.best([writer_formulas(w, seed, "random", ITERATIONS * GROUP) for w, seed in zip(writers, seeds)])
    found: list[list[str]] = [[] for _ in seeds]
    for iteration in range(ITERATIONS):
        groups = [w.write(GROUP, Stream(seed).split("group", iteration)) for w, seed in zip(writers, seeds)]
        formulas = [w.text(g) for w, g in zip(writers, groups)]
        values = search.values(formulas)
        for k, writer in enumerate(writers):
            writer.learn(groups[k], torch.tensor(values[k], dtype=torch.float64))
            found[k] += formulas[k]
    best = {"derl": search.best(found), "random search": random}
    arms = {**best, "outcome": [OUTCOME] * len(seeds), "average": [AVERAGE] * len(seeds)}
    return {
        "final": {k: train(formulas, [s + 10_000 for s in seeds], FINAL) for k, formulas in arms.items()},
        "paying": {"first": first, "last": [paying(w, seed) for w, seed in zip(writers, seeds)]},
        "best": best,
    }


def writer_formulas(writer: FormulaPolicy, seed: int, name: str, count: int) -> list[str]:
    """What a policy over formulas writes."""
    return writer.text(writer.write(count, Stream(seed).split(name)))


class Search:
    """What formulas are worth to inner runs of each seed; nothing is run twice."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self.seeds = list(seeds)
        self.known: dict[tuple[int, str], float] = {}

    def values(self, formulas: Sequence[Sequence[str]]) -> list[list[float]]:
        """Success of the policy that each formula makes; 0 for one that divides by zero."""
        wanted = {(s, f): None for s, row in zip(self.seeds, formulas) for f in row if (s, f) not in self.known}
        jobs = list(wanted)
        self.known |= zip(jobs, train([f for _, f in jobs], [s for s, _ in jobs], INNER))
        return [[self.known[s, f] for f in row] for s, row in zip(self.seeds, formulas)]

    def best(self, formulas: Sequence[Sequence[str]]) -> list[str]:
        """The formula of each seed that is worth most."""
        values = self.values(formulas)
        return [row[max(range(len(row)), key=worth.__getitem__)] for row, worth in zip(formulas, values)]


def train(formulas: Sequence[str], seeds: Sequence[int], steps: int) -> list[float]:
    """Exact success after GRPO with each formula as the reward, one member each."""
    if not formulas:
        return []
    about = [PRIMITIVES.to_json(), repr(TASK), [*formulas], [*seeds], steps]
    return recorded(
        f"formulas of {steps} steps", [variant("grpo").to_json(), *about], lambda: _train(formulas, seeds, steps)
    )


def _train(formulas: Sequence[str], seeds: Sequence[int], steps: int) -> list[float]:
    grpo: TokenMethod = variant("grpo")
    loop = EnumerableLoop(grpo, TASK, seeds=seeds, steps=steps)
    broken = [not _finite(f) for f in formulas]
    rewards = [PRIMITIVES.replace(formula=OUTCOME if bad else f).bind() for f, bad in zip(formulas, broken)]
    loop.methods = [m.replace(rewards=(r,)) for m, r in zip(loop.methods, rewards)]
    for _ in range(steps):
        loop.step()
    success = (loop.policy.probs() * loop.rewards).sum(-1).mean(1).tolist()
    return [0.0 if bad else value for bad, value in zip(broken, success)]


def _finite(formula: str) -> bool:
    """Whether a formula has a value wherever primitives are 0 or 1."""
    return bool(torch.isfinite(torch.from_numpy(evaluate(parse(formula), corners()))).all())


def corners() -> Any:
    """[4, 16] all combinations of primitives that are 0 or 1."""
    bits = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * 4).T
    return (bits + 1e-6).numpy()


def slopes(formula: str) -> list[float]:
    """What each primitive adds on average when it goes from 0 to 1 and the others are anything."""
    values, bits = torch.from_numpy(evaluate(parse(formula), corners())), torch.from_numpy(corners()) > 0.5
    return [float(values[b].mean() - values[~b].mean()) for b in bits]


def paying(writer: FormulaPolicy, seed: int, count: int = 64) -> float:
    """Share of formulas, of those that a policy writes now, in which outcome, format or soft pay more than length."""
    found = [slopes(f) for f in writer_formulas(writer, seed, "looking", count) if _finite(f)]
    return sum(max(s[:USEFUL]) > max(0.0, s[USEFUL]) for s in found) / count
