"""Hierarchy: questions about a tree that was learned by heart, one fact at a time (after arXiv:2511.05933).

Every node of a rooted tree has a code, which is that of its parent and one digit more, and an opaque name.

    facts   2131=             kq          the node 2131 is kq
            kq<               ti          kq is a child of ti
    pick    2131?az,kq,bd,rv> kq          which of four is 2131? (others: sibling, cousin, stranger)
    chain   2131/2>           ti,po       the two nearest ancestors of 2131
    lca     2131^2312>        ma          the lowest common ancestor

A completion may say anything before the answer, as in 2=ma;21=po;213=ti;2131=kq>kq. Codes of the leaves that are held
out occur in facts only. Levels are the steps from node to node that a question takes: light (fewer than 3), heavy (5 or
more) and middle.

Three prompts ask the same: 'plain' ends with >, 'thought' with ! (think first), 'structured' with | and the first code
of the way, =, so that what follows spells the way out. A model that has read the facts is needed: `tiny` has not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from string import ascii_lowercase
from typing import Annotated, ClassVar, Literal

from numpy.random import Generator

from etude.core.episodes import Problem
from etude.core.errors import ConfigError, UnknownNameError
from etude.core.fields import Interval, WholeNumber
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.tasks.pool import Pool, reserved

Exercise = Literal["pick", "chain", "lca"]
Style = Literal["plain", "thought", "structured"]
LIGHT, HEAVY = 3, 5
_NAME = re.compile(r"[a-z]{2}")


@cache
def tree(depth: int, branching: int, seed: int) -> Mapping[str, str]:
    """Name of every node but the root, by code, parents before children."""
    digits = "123456789"[:branching]
    codes = ["".join(c) for size in range(1, depth + 1) for c in product(digits, repeat=size)]
    pairs = [a + b for a in ascii_lowercase for b in ascii_lowercase]
    order = Stream(seed).split("names").numpy.permutation(len(pairs))
    return {code: pairs[k] for code, k in zip(codes, order)}


@cache
def divided(depth: int, branching: int, seed: int, withheld: float) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Codes of the leaves that are held out (two at least), and of the others."""
    leaves = [c for c in tree(depth, branching, seed) if len(c) == depth]
    order = Stream(seed).split("withheld").numpy.permutation(len(leaves))
    cut = max(2, round(withheld * len(leaves)))
    return tuple(sorted(leaves[k] for k in order[:cut])), tuple(sorted(leaves[k] for k in order[cut:]))


class Hierarchy(LanguageTask):
    """Questions about codes of a tree; reward 1 for the right answer after the last >, else 0.

    Args:
        depth, branching: of the tree; it may have at most 676 nodes.
        kinds: which questions; each problem draws one.
        style: how they are put.
        withheld: share of the leaves that occur in facts only.
        seed: which names, which leaves are held out, which problems are drawn.

    Splits: 'train' and 'test' ask about the same leaves but share no question; 'heldout' asks about the others, 'facts'
    holds every fact once.

    >>> problem = Problem("hierarchy/1", "2131?az,kq,bd,rv>", "kq")
    >>> Hierarchy().score(problem, "2131=kq>kq"), Hierarchy().score(problem, "az")
    (1.0, 0.0)
    """

    id: ClassVar[str] = "hierarchy"
    max_tokens: ClassVar[int] = 48

    depth: Annotated[int, Interval(ge=3, le=6)] = 4
    branching: Annotated[int, Interval(ge=2, le=5)] = 3
    kinds: tuple[Exercise, ...] = ("pick", "chain", "lca")
    style: Style = "plain"
    withheld: Annotated[float, Interval(gt=0, le=0.5)] = 0.25
    seed: WholeNumber = 0

    def check(self) -> None:
        if not self.kinds:
            raise ConfigError("Hierarchy.kinds must name at least one kind of question, got none.")
        nodes = sum(self.branching**k for k in range(1, self.depth + 1))
        if nodes > len(ascii_lowercase) ** 2:
            raise ConfigError(
                f"Hierarchy has {nodes} nodes at depth {self.depth} and branching {self.branching}; there are names "
                f"for {len(ascii_lowercase) ** 2}."
            )

    def splits(self) -> tuple[str, ...]:
        return ("train", "test", "heldout", "facts")

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in self.splits():
            raise UnknownNameError("split of hierarchy", split, self.splits())
        if split == "facts":
            return self.facts()
        return Pool(lambda i: self._problem(split, i), 100_000 if split == "train" else 1_000)

    def score(self, problem: Problem, completion: str) -> float:
        return float(self.answer(completion) == problem.answer)

    def answer(self, completion: str) -> str:
        """What follows the last >, or everything."""
        return completion.rpartition(">")[2].strip()

    # The tree

    @property
    def names(self) -> Mapping[str, str]:
        """Name of every node, by code."""
        return tree(self.depth, self.branching, self.seed)

    def leaves(self, held: bool) -> Sequence[str]:
        """Codes of the leaves that are held out, or of the others."""
        return divided(self.depth, self.branching, self.seed, self.withheld)[0 if held else 1]

    def facts(self) -> list[Problem]:
        """Codes of all nodes, and parents of all that have one."""
        names = self.names
        codes = [(f"{code}=", name) for code, name in names.items()]
        codes += [(f"{name}<", names[code[:-1]]) for code, name in names.items() if len(code) > 1]
        return [
            Problem(f"hierarchy/facts/{i}", prompt, text, "fact", {"demonstration": text})
            for i, (prompt, text) in enumerate(codes)
        ]

    # Questions

    def _problem(self, split: str, index: int) -> Problem:
        random, leaves = Stream(self.seed).split("hierarchy", split, index).numpy, self.leaves(split == "heldout")
        while True:
            asked = str(random.choice(self.kinds))
            code = str(random.choice(leaves))
            parts = getattr(self, f"_{asked}")(code, leaves, random)
            if parts and (split == "heldout" or reserved(parts[0]) == (split == "test")):
                break
        question, answer, way, steps = parts
        names = self.names
        info = {
            "kind": asked, "demonstration": answer, "path": tuple(names[c] for c in way), "codes": tuple(way),
            "steps": steps, "question": question,
        }  # fmt: skip
        level = "light" if steps < LIGHT else "heavy" if steps >= HEAVY else "middle"
        return Problem(f"hierarchy/{split}/{index}", self.ask(question, way, self.style), answer, level, info)

    def ask(self, question: str, way: Sequence[str], style: Style) -> str:
        """The prompt of a question in a style."""
        return question + {"plain": ">", "thought": "!", "structured": f"|{way[0]}="}[style]

    def _pick(self, code: str, leaves: Sequence[str], random: Generator) -> tuple[str, str, list[str], int]:
        nodes = [code, *(relative(code, n, self.branching, random) for n in (self.depth - 1, self.depth - 2, 0))]
        options = [self.names[nodes[k]] for k in random.permutation(len(nodes))]
        return f"{code}?{','.join(options)}", self.names[code], prefixes(code), 1

    def _chain(self, code: str, leaves: Sequence[str], random: Generator) -> tuple[str, str, list[str], int]:
        count = int(random.integers(1, self.depth))
        way = [code[:-k] for k in range(1, count + 1)]
        return f"{code}/{count}", ",".join(self.names[c] for c in way), way, count

    def _lca(
        self, code: str, leaves: Sequence[str], random: Generator
    ) -> tuple[str, str, list[str], int] | None:  # fmt: skip
        """None for a leaf that is alone under its first digit; a leaf that is held out may meet one that is not."""
        for partners in (leaves, self.leaves(False)):
            shares = [common(c, code) for c in partners]
            if possible := sorted({n for n in shares if 0 < n < self.depth}):
                break
        else:
            return None
        shared = int(random.choice(possible))
        other = str(random.choice([c for c, n in zip(partners, shares) if n == shared]))
        up = [code[:k] for k in range(self.depth - 1, shared - 1, -1)]
        down = [other[:k] for k in range(shared + 1, self.depth)]
        return f"{code}^{other}", self.names[code[:shared]], up + down, 2 * (self.depth - shared)


def prefixes(code: str) -> list[str]:
    """Codes on the way from the root to a node.

    >>> prefixes("213")
    ['2', '21', '213']
    """
    return [code[:k] for k in range(1, len(code) + 1)]


def relative(code: str, shared: int, branching: int, random: Generator) -> str:
    """A leaf that has exactly the first `shared` digits in common with another."""
    digits = random.integers(1, branching + 1, size=len(code) - shared)
    digits[0] = 1 + (int(code[shared]) - 1 + random.integers(1, branching)) % branching
    return code[:shared] + "".join(map(str, digits))


def common(one: str, other: str) -> int:
    """How many digits two codes begin with in common."""
    return next((k for k, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


def named(completion: str) -> list[str]:
    """Names that a completion mentions, in order.

    >>> named("213=ti;21=po>ti,po")
    ['ti', 'po', 'ti', 'po']
    """
    return _NAME.findall(completion)


def worked(problem: Problem, style: Style = "plain") -> str:
    """A completion that spells the way out, code by code, and then answers; a structured prompt has begun it."""
    way = ";".join(f"{code}={name}" for code, name in zip(problem.info["codes"], problem.info["path"]))
    begun = len(problem.info["codes"][0]) + 1 if style == "structured" else 0
    return f"{way[begun:]}>{problem.answer}"


hierarchy = Hierarchy()
