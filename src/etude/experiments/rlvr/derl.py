"""DERL's claim: formulas tried on short inner runs over enumerable answers, one of their primitives misleading."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from etude.core.episodes import Problem
from etude.core.kinds import TokenMethod
from etude.core.streams import Stream
from etude.evaluation.pairs import Pair
from etude.experiments.arms import pairs, variant
from etude.experiments.cells import recorded, spread
from etude.loops.enumerable import EnumerableLoop, exact
from etude.methods.rlvr.derl.formulas import FormulaPolicy
from etude.methods.rlvr.derl.reward import FormulaReward, evaluate, parse
from etude.tasks.tabular.enumerable import Enumerable

ITERATIONS, GROUP = 8, 4
INNER, FINAL, POLICIES = 30, 200, 6
"""Training steps of an inner run, and of each of the policies that are trained with the best formula."""
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


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """DERL, random search over as many formulas, the outcome alone and the mean of the primitives."""
    found = spread(search, seeds)
    rivals = {f"success against {k}": k for k in ("outcome", "average", "random search")}
    success = {k: [f["success"][k] for f in found] for k in ("derl", *rivals.values())}
    paid = {when: [f["paying"][when] for f in found] for when in ("first", "last")}
    first = TASK.policy()
    begun = float(exact(first, TASK.table(len(first.tokens)))["reward"])
    return pairs(
        seeds,
        {**dict.fromkeys(rivals, success["derl"]), "formulas that pay": paid["last"]},
        {**{name: success[k] for name, k in rivals.items()}, "formulas that pay": paid["first"]},
        start={name: [begun] * len(seeds) for name in rivals},
    )


def search(seed: int) -> dict[str, dict[str, float]]:
    """Both searches, and the mean success along the training of policies with what they found."""
    torch.set_num_threads(1)
    tried, writer = Tried(seed), FormulaPolicy().bind()
    writer.begin(Stream(seed))
    first = paying(writer, seed)
    random = tried.best(writer_formulas(writer, seed, "random", ITERATIONS * GROUP))
    found: list[str] = []
    for iteration in range(ITERATIONS):
        group = writer.write(GROUP, Stream(seed).split("group", iteration))
        formulas = writer.text(group)
        writer.learn(group, torch.tensor(tried.values(formulas), dtype=torch.float64))
        found += formulas
    arms = {"derl": tried.best(found), "random search": random, "outcome": OUTCOME, "average": AVERAGE}
    later = [seed + 10_000 * (k + 1) for k in range(POLICIES)]
    curves = train([f for f in arms.values() for _ in later], later * len(arms), FINAL)
    area = [sum(curve) / len(curve) for curve in curves]
    success = {k: sum(area[i * POLICIES : (i + 1) * POLICIES]) / POLICIES for i, k in enumerate(arms)}
    return {"success": success, "paying": {"first": first, "last": paying(writer, seed)}}


def writer_formulas(writer: FormulaPolicy, seed: int, name: str, count: int) -> list[str]:
    """What a policy over formulas writes."""
    return writer.text(writer.write(count, Stream(seed).split(name)))


class Tried:
    """What formulas are worth to inner runs of a seed; nothing is run twice."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.known: dict[str, float] = {}

    def values(self, formulas: Sequence[str]) -> list[float]:
        """Success of the policy that each formula makes; 0 for one that divides by zero."""
        new = [f for f in dict.fromkeys(formulas) if f not in self.known]
        self.known |= {f: curve[-1] for f, curve in zip(new, train(new, [self.seed] * len(new), INNER))}
        return [self.known[f] for f in formulas]

    def best(self, formulas: Sequence[str]) -> str:
        """The formula that is worth most."""
        values = self.values(formulas)
        return formulas[max(range(len(formulas)), key=values.__getitem__)]


def train(formulas: Sequence[str], seeds: Sequence[int], steps: int) -> list[list[float]]:
    """Exact success after every step of GRPO with each formula as the reward, one member each."""
    if not formulas:
        return []
    about = [PRIMITIVES.to_json(), repr(TASK), [*formulas], [*seeds], steps]
    return recorded(
        f"formulas of {steps} steps", [variant("grpo").to_json(), *about], lambda: _train(formulas, seeds, steps)
    )


def _train(formulas: Sequence[str], seeds: Sequence[int], steps: int) -> list[list[float]]:
    grpo: TokenMethod = variant("grpo")
    loop = EnumerableLoop(grpo, TASK, seeds=seeds, steps=steps)
    broken = [not _finite(f) for f in formulas]
    rewards = [PRIMITIVES.replace(formula=OUTCOME if bad else f).bind() for f, bad in zip(formulas, broken)]
    loop.methods = [m.replace(rewards=(r,)) for m, r in zip(loop.methods, rewards)]
    success = []
    for _ in range(steps):
        loop.step()
        success.append((loop.policy.probs().detach() * loop.rewards).sum(-1).mean(1))
    return [[0.0] if bad else values for bad, values in zip(broken, torch.stack(success, 1).tolist())]


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
