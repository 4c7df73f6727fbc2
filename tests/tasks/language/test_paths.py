"""Paths: graphs, the divide, training paths, what counts as a path; the states of Blocksworld."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest

from etude.core.errors import ConfigError, UnknownNameError
from etude.policies.byte_tokenizer import build_tokenizer
from etude.tasks.language import _graphs
from etude.tasks.language.chains import NAMES as VERTICES
from etude.tasks.language.paths import NAMES, Paths, data, paths

GRAPHS = [paths, Paths(graph="directed", nodes=20, demonstrations=3), Paths(graph="blocksworld", demonstrations=1)]


@pytest.mark.slow
@pytest.mark.parametrize("names", [NAMES, VERTICES])
def test_every_node_is_one_token_wherever_it_stands(names: str) -> None:
    encode = build_tokenizer(64).encode
    assert len(set(names)) == len(names)
    assert all(len(encode(a + b, add_special_tokens=False)) == 2 for a, b in product(names, repeat=2))


@pytest.mark.parametrize("task", GRAPHS, ids=lambda t: t.graph)
def test_training_paths_are_paths_between_their_pair(task: Paths) -> None:
    made = data(task)
    assert len(made.paths) == task.demonstrations * len(made.train)
    for number, path in enumerate(made.paths):
        assert (path[0], path[-1]) == made.train[number % len(made.train)]
        assert all(made.edges[a, b] for a, b in pairwise(path))
        assert len(set(path)) == len(path)
    pool = task.problems("train")
    for problem in pool[:100]:
        assert task.score(problem, task.demonstration(problem)) == 1.0
        assert problem.level == "degree0"
        assert len(task.demonstration(problem)) <= task.max_tokens - 1


@pytest.mark.parametrize("task", GRAPHS, ids=lambda t: t.graph)
def test_pairs_with_an_edge_are_trained_on_and_nothing_is_in_both(task: Paths) -> None:
    made = data(task)
    train, test = set(made.train), set(made.test)
    assert not train & test
    assert train | test == {(int(s), int(t)) for s, t in np.argwhere(made.reaches) if s != t}
    assert {(int(s), int(t)) for s, t in np.argwhere(made.edges)} <= train
    share = len(train - set(map(tuple, np.argwhere(made.edges).tolist()))) / (len(train | test) - made.edges.sum())
    assert share == pytest.approx(0.3, abs=0.1)


def test_reachability_and_hops_by_exhaustive_search() -> None:
    for acyclic in (True, False):
        edges = _graphs.random_graph(9, 0.2, acyclic, np.random.default_rng(0))
        reaches, steps = _graphs.reachability(edges), _graphs.hops(edges)
        power = np.eye(9, dtype=int)
        first = np.full((9, 9), -1)
        for count in range(1, 10):
            power = (power @ edges.astype(int) > 0).astype(int)
            first[(first < 0) & (power > 0)] = count
        assert np.array_equal(first, steps)
        assert np.array_equal(first > 0, reaches)
        assert not acyclic or not np.tril(edges).any()


def test_demonstrations_of_a_dag_take_every_way_and_of_a_cyclic_graph_the_shortest_ones() -> None:
    edges = np.zeros((5, 5), dtype=bool)
    edges[[0, 0, 0, 1, 2], [1, 2, 4, 2, 4]] = True  # 0-4, 0-2-4, 0-1-2-4
    random = np.random.default_rng(0)
    drawn = {tuple(_graphs.random_path(0, 4, edges, _graphs.ranks(edges), random)) for _ in range(100)}
    assert drawn == {(0, 4), (0, 2, 4), (0, 1, 2, 4)}
    edges[4, 0] = True
    drawn = {tuple(_graphs.random_path(0, 4, edges, _graphs.ranks(edges), random)) for _ in range(100)}
    assert drawn == {(0, 4)}
    drawn = {tuple(_graphs.random_path(2, 1, edges, _graphs.ranks(edges), random)) for _ in range(20)}
    assert drawn == {(2, 4, 0, 1)}


def test_blocksworld_has_73_states_and_moves_of_one_block() -> None:
    states, edges = _graphs.blocksworld()
    assert len(states) == len(set(states)) == 73
    assert [len(_graphs.blocksworld(n)[0]) for n in (1, 2, 3)] == [1, 3, 13]
    assert np.array_equal(edges, edges.T) and not edges.diagonal().any()
    assert _graphs.reachability(edges).all()
    table, tower = frozenset({("A",), ("B",), ("C",), ("D",)}), frozenset({tuple("ABCD")})
    number = {s: i for i, s in enumerate(states)}
    assert edges[number[table]].sum() == 12  # any block onto any other
    assert edges[number[tower]].sum() == 1  # only the top block is free, and it can go to the table alone
    after = states[int(np.flatnonzero(edges[number[tower]])[0])]
    assert after == frozenset({tuple("ABC"), ("D",)})


@pytest.mark.slow
def test_what_is_no_path_earns_nothing() -> None:
    made = data(paths)
    problem = next(p for p in paths.problems("train")[:500] if len(p.info["demonstration"]) > 1)
    source, target, way = problem.info["source"], problem.answer, problem.info["demonstration"]
    assert paths.score(problem, way) == 1.0
    stranger = next(NAMES[k] for k in range(30) if not made.edges[NAMES.index(source), k])
    for wrong in ("", source, source + way, way[:-1], way + target, way + "?", " " + way, stranger, "~" + target):
        assert paths.score(problem, wrong) == 0.0, wrong


def test_a_problem_depends_on_fields_split_and_index_alone() -> None:
    assert Paths().problems("test")[3] == paths.problems("test")[3]
    assert len(paths.problems("test")) == len(data(paths).test)
    assert paths.problems("test")[0].id == "paths/test/0"
    assert paths.demonstration(paths.problems("test")[0]) is None
    assert [p.prompt for p in Paths(seed=1).problems("train")[:9]] != [p.prompt for p in paths.problems("train")[:9]]


def test_what_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'test'"):
        paths.problems("tests")
    for fields in ({"nodes": 4}, {"nodes": 75}, {"density": 0.0}, {"train_share": 1.0}, {"graph": "tree"}):
        with pytest.raises(ConfigError):
            Paths(**fields)
    with pytest.raises(ConfigError, match="left to test"):
        Paths(nodes=5, density=0.01).problems("train")
