"""Directed graphs, who reaches whom in them, and random paths: what `paths` is made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import permutations
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
State = frozenset[tuple[str, ...]]


def random_graph(nodes: int, density: float, acyclic: bool, random: Generator) -> Bools:
    """A[i, j]: whether there is an edge i -> j; each with probability `density`, only those with i < j if `acyclic`."""
    edges = random.random((nodes, nodes)) < density
    return np.triu(edges, 1) if acyclic else edges & ~np.eye(nodes, dtype=bool)


def blocksworld(blocks: int = 4) -> tuple[list[State], Bools]:
    """Every arrangement of labelled blocks in stacks (73 of four), and which follow by moving one free block.

    A state is the set of its stacks, each from the bottom to the top; states are in alphabetical order.
    """
    names = "ABCDEFGH"[:blocks]
    arrangements = {_stacks(order, cuts) for order in permutations(names) for cuts in range(2 ** (blocks - 1))}
    states = sorted(arrangements, key=lambda s: sorted(map("".join, s)))
    number = {state: i for i, state in enumerate(states)}
    edges = np.zeros((len(states), len(states)), dtype=bool)
    for state, i in number.items():
        for after in _moves(state):
            edges[i, number[after]] = True
    return states, edges


def _stacks(order: tuple[str, ...], cuts: int) -> State:
    """A row of blocks cut into stacks after every block whose bit is set."""
    stacks: list[tuple[str, ...]] = [()]
    for place, block in enumerate(order):
        stacks[-1] += (block,)
        if cuts >> place & 1 and place + 1 < len(order):
            stacks.append(())
    return frozenset(stacks)


def _moves(state: State) -> set[State]:
    """States after taking the top block of a stack and putting it on another one or on the table."""
    states = set()
    for stack in state:
        rest, block = state - {stack}, stack[-1:]
        left = rest | ({stack[:-1]} if len(stack) > 1 else set())
        states.add(left | {block})
        states |= {left - {other} | {other + block} for other in rest}
    return states - {state}


def reachability(edges: Bools) -> Bools:
    """R[i, j]: whether a path of one step or more leads from i to j."""
    reachable = edges.copy()
    for middle in range(len(edges)):
        reachable |= reachable[:, middle, None] & reachable[None, middle]
    return reachable


def hops(steps: Bools) -> NDArray[np.int64]:
    """[n, n] fewest steps from i to j along `steps`; -1 where there is no way."""
    fewest = np.full(steps.shape, -1)
    near = steps.copy()
    for count in range(1, len(steps) + 1):
        fewest[near & (fewest < 0)] = count
        near = (near.astype(np.int64) @ steps.astype(np.int64)) > 0
        if not (near & (fewest < 0)).any():
            break
    return fewest


def random_path(source: int, target: int, edges: Bools, near: NDArray[np.int64], random: Generator) -> list[int]:
    """A path with its two ends, each step to a uniformly drawn child that the target can be reached from.

    In a graph with cycles such a walk may go round for long: there only children that are nearer to it are drawn.

    Args:
        near: [n, n] ranks by `ranks`: a child qualifies if its rank is below that of the node.
    """
    path = [source]
    while path[-1] != target:
        allowed = edges[path[-1]] & (near[:, target] < near[path[-1], target])
        path.append(int(random.choice(np.flatnonzero(allowed))))
    return path


def ranks(edges: Bools) -> NDArray[np.int64]:
    """[n, n] a number that falls along every path to a target that may be drawn: steps left, or order of the graph."""
    count = len(edges)
    steps = hops(edges)
    if not reachability(edges).diagonal().any():  # no cycle: any way on is fine
        behind = (steps >= 0).sum(1)  # nodes that can be reached: fewer after every step
        steps = np.where(steps < 0, -1, np.broadcast_to(behind[:, None], steps.shape))
    numbers = np.where(steps < 0, 2 * count, steps)
    np.fill_diagonal(numbers, -1)
    return numbers


def transitions(paths: Iterable[Sequence[int]], nodes: int) -> NDArray[np.int64]:
    """N[i, j, k]: how often k follows j on a path to i."""
    counts = np.zeros((nodes, nodes, nodes), dtype=np.int64)
    for path in paths:
        place: Any = (path[-1], np.array(path[:-1]), np.array(path[1:]))
        np.add.at(counts, place, 1)
    return counts
