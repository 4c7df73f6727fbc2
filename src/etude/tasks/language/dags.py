"""Dags: quantities computed from each other, modulo 23 unless told otherwise, and the worked solution as a graph.

    prompt      c=a+b;a=7;e=a*c;b=10?e>           definitions in any order, and which one is asked for
    completion  a=7;b=10;c=a+b=17;e=a*c=4;        what it needs, in an order in which every parent comes first

Difficulty `op` is how many operations it takes. The text of a solution parses back to its graph, so that what is wrong
is counted, not guessed (arXiv:2512.07783): nodes that are missing, nodes too many, wrong values, wrong parents.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from numpy.random import Generator

from etude.core.episodes import Episode, Problem
from etude.core.errors import ConfigError, UnknownNameError
from etude.core.fields import Interval, Probability, WholeNumber
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.tasks.pool import Pool, reserved

VOCABULARIES: Mapping[str, str] = {"first": "abcdeghijklm", "second": "nopqrstuvwxyz"}
"""Names of quantities in each; surface alone."""
STEP = re.compile(r"([a-z])=(?:([a-z])([+*-])([a-z])=)?(\d{1,2})")


@dataclass(frozen=True)
class Node:
    """One quantity: its value, and what it is computed from; `operation` is '' of a constant."""

    value: int
    parents: tuple[str, ...] = ()
    operation: str = ""


Graph = Mapping[str, Node]


class Dags(LanguageTask):
    """Arithmetic graphs; reward 1 if the last value of the completion is the right one, else 0.

    Args:
        ops: how many operations the answer takes; each problem draws one of these.
        rare: share of the problems whose names are those of the second vocabulary.
        hard: the same of the split 'hard', whatever is trained on.
        modulus: values run from 0 to one less; a model knows the tables of a small one after few texts.
        judged: by the last value, the 'answer'; or by the 'process' too: 1 only where answer and graph are right, which
            is strict success.
        seed: which problems are drawn. The train/test divide is the same for every seed.

    Splits: 'train', 'test', 'rare', the test with names of the second vocabulary alone, and 'hard'. None shares a
    problem with 'train'.

    >>> problem = Problem("dags/1", "c=a+b;a=7;b=10?c>", "17")
    >>> Dags().score(problem, "a=7;b=10;c=a+b=17;"), Dags().score(problem, "a=7;b=10;c=a+b=16;")
    (1.0, 0.0)
    >>> worked = Problem("dags/1", problem.prompt, "17", info={"demonstration": "a=7;b=10;c=a+b=17;"})
    >>> [Dags(judged=by).score(worked, "a=7;b=9;c=a+b=17;") for by in ("answer", "process")]
    [1.0, 0.0]
    """

    id: ClassVar[str] = "dags"
    max_tokens: ClassVar[int] = 128

    ops: tuple[Annotated[int, Interval(ge=1, le=8)], ...] = (1, 2, 3, 4)
    rare: Probability = 0.0
    hard: tuple[Annotated[int, Interval(ge=1, le=8)], ...] = (7, 8)
    modulus: Annotated[int, Interval(ge=2, le=100)] = 23
    judged: Literal["answer", "process"] = "answer"
    seed: WholeNumber = 0

    def check(self) -> None:
        for name in ("ops", "hard"):
            if not getattr(self, name):
                raise ConfigError(f"Dags.{name} must name at least one number of operations, got none.")

    def splits(self) -> tuple[str, ...]:
        return ("train", "test", "rare", "hard")

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in self.splits():
            raise UnknownNameError("split of dags", split, self.splits())
        return Pool(lambda i: self._problem(split, i), 100_000 if split == "train" else 1_000)

    def score(self, problem: Problem, completion: str) -> float:
        right = self.answer(completion) == problem.answer
        return float(right and (self.judged == "answer" or self._process(problem, completion) == 1))

    def metrics(self, episode: Episode) -> Mapping[str, float]:
        """P of the graph, and strict success: whether answer and graph are right."""
        process = self._process(episode.problem, episode.completion)
        right = self.answer(episode.completion) == episode.problem.answer
        return {"process": process, "strict": float(right and process == 1)}

    def _process(self, problem: Problem, completion: str) -> float:
        return process_score(completion, self.demonstration(problem) or "")

    def answer(self, completion: str) -> str:
        """The last value that is said."""
        return completion.strip().rstrip(";").rpartition("=")[2].strip()

    def solution_steps(self, completion: str) -> list[str]:
        """One definition each."""
        return [step for step in completion.strip().split(";") if step]

    def _problem(self, split: str, index: int) -> Problem:
        random = Stream(self.seed).split("dags", split, index).numpy
        op = int(random.choice(self.hard if split == "hard" else self.ops))
        while True:
            second = split == "rare" or random.random() < self.rare
            vocabulary: Literal["first", "second"] = "second" if second else "first"
            graph = drawn(op, VOCABULARIES[vocabulary], self.modulus, random)
            asked = list(graph)[-1]
            shown = [list(graph)[i] for i in random.permutation(len(graph))]
            prompt = ";".join(f"{name}={_defined(graph[name])}" for name in shown) + f"?{asked}>"
            if reserved(prompt) == (split != "train"):
                break
        info = {"demonstration": rendered(graph), "vocabulary": vocabulary}
        return Problem(f"dags/{split}/{index}", prompt, str(graph[asked].value), f"op{op}", info)


def drawn(op: int, names: str, modulus: int, random: Generator) -> dict[str, Node]:
    """A graph whose last node takes `op` operations: each adds one to what is there, and all of them are needed."""
    order = [names[i] for i in random.permutation(len(names))]
    graph = {order[0]: Node(int(random.integers(modulus)))}
    last = order[0]
    for _ in range(op):
        name = order[len(graph)]
        others = list(graph)
        if len(graph) + (op - _) < len(names) - 1 and random.random() < 0.4:
            graph[name] = Node(int(random.integers(modulus)))
            others, name = [name], order[len(graph)]
        parents = [last, others[random.integers(len(others))]]
        if random.random() < 0.5:
            parents.reverse()
        operation = "+-*"[random.integers(3)]
        left, right = (graph[parent].value for parent in parents)
        graph[name] = Node(computed(operation, left, right, modulus), tuple(parents), operation)
        last = name
    return graph


def computed(operation: str, left: int, right: int, modulus: int) -> int:
    """A value.

    >>> computed("-", 3, 5, 23), computed("*", 7, 17, 23)
    (21, 4)
    """
    return {"+": left + right, "-": left - right, "*": left * right}[operation] % modulus


def rendered(graph: Graph) -> str:
    """A solution that says every node, parents first.

    >>> rendered({"a": Node(7), "b": Node(10), "c": Node(17, ("a", "b"), "+")})
    'a=7;b=10;c=a+b=17;'
    """
    return "".join(f"{k}={f'{_defined(n)}=' if n.parents else ''}{n.value};" for k, n in graph.items())


def parsed(text: str) -> dict[str, Node] | None:
    """The graph that a solution says; None if it is not a list of definitions, or defines something twice.

    >>> parsed("a=7;c=a+a=14;")["c"]
    Node(value=14, parents=('a', 'a'), operation='+')
    >>> parsed("a=7;c=a+;") is None, parsed("a=7;a=8;") is None, parsed("") is None
    (True, True, True)
    """
    graph: dict[str, Node] = {}
    for step in text.strip().removesuffix(";").split(";"):
        found = STEP.fullmatch(step)
        if found is None or found[1] in graph:
            return None
        name, left, operation, right, value = found.groups()
        graph[name] = Node(int(value), (left, right) if left else (), operation or "")
    return graph


def graph_errors(said: Graph, gold: Graph, answer: str) -> int:
    """E: what is wrong with a solution's graph, `answer` being the name that was asked for.

    As in the paper values and sets of parents count, and not the operation between these.

    >>> gold = parsed("a=7;b=10;c=a+b=17;")
    >>> [graph_errors(parsed(t), gold, "c") for t in ("a=7;b=10;c=a+b=17;", "a=7;b=9;c=a+b=17;", "a=7;c=a+a=14;")]
    [0, 1, 4]
    """
    both = said.keys() & gold.keys()
    values = sum(said[name].value != gold[name].value for name in both)
    parents = sum(set(said[name].parents) != set(gold[name].parents) for name in both)
    wrong = answer not in said or said[answer].value != gold[answer].value
    return len(gold.keys() - both) + min(len(said.keys() - both), len(gold)) + values + parents + wrong


def process_score(said: str, worked: str) -> float:
    """P of a solution against the worked one: 1 for the same graph, 0 for what does not parse.

    >>> [round(process_score(t, "a=7;b=10;c=a+b=17;"), 4) for t in ("b=10;a=7;c=a+b=17;", "a=7;b=9;c=a+b=17;", "c=17")]
    [1.0, 0.6667, 0.0]
    """
    found, gold = parsed(said), parsed(worked)
    if found is None or not gold:
        return 0.0
    return max(0.0, 1 - graph_errors(found, gold, list(gold)[-1]) / len(gold))


def _defined(node: Node) -> str:
    return node.operation.join(node.parents) if node.parents else str(node.value)


dags = Dags()
