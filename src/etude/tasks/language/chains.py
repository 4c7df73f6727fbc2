"""Chains: two chains of letters; which one does a vertex belong to? Say the last vertex of its chain.

The synthetic task of "Outcome-Based RL Provably Leads Transformers to Reason" (arXiv:2601.15158) as text. Labels are
permuted anew for every problem, so nothing but following the edges can tell the two ends apart.

    prompt      cb af de bd fg>c        edges in random order, then the source
    completion  bde                     any vertices; the first sink among the first m + 1 of them is the answer

Nothing is said about the vertices in between: only the outcome is rewarded. The level is the number of edges from the
source to its sink.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, ClassVar

from etude.core.episodes import Problem
from etude.core.errors import ConfigError, UnknownNameError
from etude.core.fields import Interval, WholeNumber
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.policies.byte_tokenizer import VERTICES as NAMES
from etude.tasks.pool import Pool, reserved


class Chains(LanguageTask):
    """Two chains of `length` vertices; reward 1 if the first sink that is said is the one of the source's chain.

    Args:
        length: m, vertices of each chain.
        starts: places on its chain that the source is drawn from, 0 (the hardest) to m - 2; empty for all of them.
        isolated: vertices without an edge that share the names.
        seed: which problems are drawn. The train/test divide is the same for every seed.

    Splits: 'train' and 'test', which share no problem.

    >>> problem = Problem("chains/1", "ab de bc ef>a", "c", info={"sinks": "cf"})
    >>> Chains(length=3).score(problem, "bc"), Chains(length=3).score(problem, "ef")
    (1.0, 0.0)
    """

    id: ClassVar[str] = "chains"
    max_tokens: ClassVar[int] = 16

    length: Annotated[int, Interval(ge=2, le=12)] = 4
    starts: tuple[WholeNumber, ...] = ()
    isolated: WholeNumber = 0
    seed: WholeNumber = 0

    def check(self) -> None:
        if any(s > self.length - 2 for s in self.starts):
            raise ConfigError(f"Chains.starts must be places from 0 to {self.length - 2}, got {list(self.starts)}.")
        if 2 * self.length + self.isolated > len(NAMES):
            raise ConfigError(
                f"Chains has names for {len(NAMES)} vertices, got two chains of {self.length} and {self.isolated} more."
            )

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in self.splits():
            raise UnknownNameError("split of chains", split, self.splits())
        return Pool(lambda i: self._problem(split, i), 100_000 if split == "train" else 1_000)

    def score(self, problem: Problem, completion: str) -> float:
        return float(self.answer(completion, problem.info["sinks"]) == problem.answer)

    def answer(self, completion: str, sinks: str = "") -> str:
        """The first sink among the first m + 1 characters; without `sinks` the last character."""
        text = completion.strip()[: self.length + 1]
        return next((v for v in text if v in sinks), "") if sinks else text[-1:]

    def traverses(self, problem: Problem, completion: str) -> bool:
        """Whether the completion is exactly the way from the source to its sink."""
        return bool(completion.strip() == problem.info["demonstration"])

    def _problem(self, split: str, index: int) -> Problem:
        random = Stream(self.seed).split("chains", split, index).numpy
        m, places = self.length, self.starts or range(self.length - 1)
        while True:
            names = [NAMES[k] for k in random.permutation(2 * m + self.isolated)]
            chains = "".join(names[:m]), "".join(names[m : 2 * m])
            edges = [a + b for chain in chains for a, b in pairwise(chain)]
            start = int(random.choice(list(places)))
            prompt = " ".join(edges[k] for k in random.permutation(len(edges))) + f">{chains[0][start]}"
            if reserved(prompt) == (split == "test"):
                break
        info = {"sinks": chains[0][-1] + chains[1][-1], "demonstration": chains[0][start + 1 :]}
        return Problem(f"chains/{split}/{index}", prompt, chains[0][-1], f"edges{m - 1 - start}", info)


chains = Chains()
