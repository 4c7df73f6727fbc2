"""Paths: find a way from one node of a graph to another; the graph itself is never shown, only learned.

The testbed of ALPINE (arXiv:2405.09220) and of "Benefits and Pitfalls of Reinforcement Learning for Language Model
Planning" (arXiv:2509.22613). Every node is one character, so that it is one token of tiny's tokenizer.

    prompt      D4        the target, then the source
    completion  ACD       the nodes of a path after the source, up to the target

Their sequences are "s t s a b c t", here they are "t s a b c t": rotary positions tell a model how far away a token is,
not how far from the start, and the first token is the one that can be found from everywhere. So the current node is
always the last token, and the target always the first.

Of all pairs (s, t) with a path, those joined by an edge are trained on, and a share of the others; the rest is the
test. From the training paths follow two matrices: which edges were seen, and R_obs[t, k], whether k was seen, not as
the source, on a path to t. The level of a pair is its degree: one less than the fewest pieces, each seen in training,
that a path has to be put together from. 'degree0' is a source that was seen on a path to this very target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from etude.core.episodes import Problem
from etude.core.errors import ConfigError, UnknownNameError
from etude.core.fields import Count, Fraction, Interval, WholeNumber
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.policies.byte_tokenizer import NODES as NAMES
from etude.tasks.language import _graphs
from etude.tasks.language._graphs import Bools
from etude.tasks.pool import Pool


class Paths(LanguageTask):
    """Path finding; reward 1 for a completion that follows edges from the source and ends at the target.

    Args:
        graph: 'dag', edges only from lower to higher nodes; 'directed'; or 'blocksworld', whose 73 nodes are the
            arrangements of four blocks and whose edges are moves of one block (`nodes` and `density` do not matter).
            Demonstrations go on to any child that reaches the target; in graphs with cycles, to one nearer to it.
        nodes: how many there are.
        density: probability of an edge.
        train_share: share of the pairs without an edge between them that is trained on.
        demonstrations: random paths for every pair that is trained on.
        seed: graph, split and paths.

    Splits: 'train', every pair with each of its demonstrations, and 'test', the pairs that are never trained on.

    >>> problem = Problem("paths/1", "20", "2", info={"source": "0", "moves": {"0": "1", "1": "2"}})
    >>> Paths().score(problem, "12"), Paths().score(problem, "2")
    (1.0, 0.0)
    """

    id: ClassVar[str] = "paths"
    max_tokens: ClassVar[int] = 24

    graph: Literal["dag", "directed", "blocksworld"] = "dag"
    nodes: Annotated[int, Interval(ge=5, le=len(NAMES))] = 30
    density: Fraction = 0.15
    train_share: Fraction = 0.3
    demonstrations: Count = 20
    seed: WholeNumber = 0

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in self.splits():
            raise UnknownNameError("split of paths", split, self.splits())
        made = data(self)
        return Pool(lambda i: self._problem(split, i), len(made.paths) if split == "train" else len(made.test))

    def score(self, problem: Problem, completion: str) -> float:
        moves, way = problem.info["moves"], problem.info["source"] + completion
        return float(way[-1] == problem.answer and all(b in moves.get(a, "") for a, b in pairwise(way)))

    def demonstration(self, problem: Problem) -> str | None:
        """The pair's path of the training set; of a test pair none was ever drawn."""
        return problem.info.get("demonstration")

    def _problem(self, split: str, index: int) -> Problem:
        made = data(self)
        pairs = made.train if split == "train" else made.test
        source, target = pairs[index % len(pairs)]
        info = {"source": NAMES[source], "moves": made.moves}
        if split == "train":
            info["demonstration"] = "".join(NAMES[k] for k in made.paths[index][1:])
        level = f"degree{made.degree[source, target]}"
        return Problem(f"paths/{split}/{index}", NAMES[target] + NAMES[source], NAMES[target], level, info)


@dataclass(frozen=True)
class PathData:
    """What a task is made of; all matrices are [n, n] and node numbers are positions in `NAMES`.

    Args:
        edges: A[i, j], there is an edge i -> j.
        reaches: R[i, j], a path leads from i to j.
        train, test: pairs (source, target), in random order.
        paths: training paths; number i belongs to pair i modulo the number of pairs.
        counts: N[t, j, k] [n, n, n], how often k follows j on a path to t.
        seen: [t, k], R_obs: k was seen, not as the source, on a path to t.
        degree: [s, t], pieces seen in training that a path has to be put together from, less one; -2 without a path.
        moves: nodes that follow each node, by name.
    """

    edges: Bools
    reaches: Bools
    train: list[tuple[int, int]]
    test: list[tuple[int, int]]
    paths: list[list[int]]
    counts: NDArray[np.int64]
    seen: Bools
    degree: NDArray[np.int64]
    moves: dict[str, str]

    @property
    def nodes(self) -> int:
        return len(self.edges)


@cache
def data(task: Paths) -> PathData:
    """Graph, split and training paths of a task. Raises ConfigError if nothing is left to test."""
    random = Stream(task.seed).split("paths").numpy
    if task.graph == "blocksworld":
        edges = _graphs.blocksworld()[1]
    else:
        edges = _graphs.random_graph(task.nodes, task.density, task.graph == "dag", random)
    reaches = _graphs.reachability(edges)
    train, test = _divide(edges, reaches, task.train_share, random)
    if not test:
        raise ConfigError(f"paths: no pair of {len(edges)} nodes is left to test; raise nodes or density.")
    near = _graphs.ranks(edges)
    paths = [_graphs.random_path(s, t, edges, near, random) for _ in range(task.demonstrations) for s, t in train]
    counts = _graphs.transitions(paths, len(edges))
    seen = counts.sum(1) > 0
    pieces = seen.T.copy()
    pieces[tuple(np.array(train).T)] = True
    moves = {NAMES[i]: "".join(NAMES[k] for k in np.flatnonzero(row)) for i, row in enumerate(edges)}
    return PathData(edges, reaches, train, test, paths, counts, seen, _graphs.hops(pieces) - 1, moves)


def _divide(
    edges: Bools, reaches: Bools, share: float, random: np.random.Generator
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Pairs to train on and pairs to test, each in random order."""
    pairs = [(int(s), int(t)) for s, t in np.argwhere(reaches) if s != t]
    random.shuffle(pairs)
    chosen = [bool(edges[p]) or random.random() < share for p in pairs]
    return [p for p, c in zip(pairs, chosen) if c], [p for p, c in zip(pairs, chosen) if not c]


paths = Paths()
