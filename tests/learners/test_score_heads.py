"""Heads on frozen states, and the pairs they would ask about: against loops, brute force and the model itself."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from etude.core.episodes import Episode, Problem, Segment
from etude.learners.queries import d_optimal_pairs, disagreed_pairs, random_pairs
from etude.learners.score_heads import Compared, Feedback, Labelled, Ranked, Rated, ScoreHeads, Worked, mean_states
from etude.policies.written import written
from language_toys import random_policy


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X = torch.stack([x[x.sum(-1).argsort(descending=True)] for x in normal(40, 4, 3)])
"""States of four answers to each of 40 problems, the best one's first: worth is the sum."""
ROWS = torch.tensor([[0, 5, 5], [7, 1, 39]])


def heads(members: int = 2, **options: Any) -> ScoreHeads:
    return ScoreHeads(X.flatten(0, 1), members=members, seed=3, **options)


def feedback() -> dict[str, Feedback]:
    return {
        "compared": Compared(X[:, 0], X[:, 1]), "labelled": Labelled(X[:, 0], X[:, 1]), "ranked": Ranked(X),
        "rated": Rated(X[:, 0], X[:, 0].sum(-1)), "worked": Worked(X[:, 0], (X[:, 0, 0] > 0).double()),
    }  # fmt: skip


def by_hand(kind: str, v: Any, row: int) -> float:
    a, b = v(X[row, 0]), v(X[row, 1])
    if kind == "compared":
        return math.log(1 + math.exp(b - a))
    if kind == "labelled":
        return (math.log(1 + math.exp(-a)) + math.log(1 + math.exp(b))) / 2
    if kind == "worked":
        return math.log(1 + math.exp(-a if X[row, 0, 0] > 0 else a))
    if kind == "rated":
        return float((a - float(X[row, 0].sum())) ** 2)
    e = [math.exp(v(x)) for x in X[row]]
    return -sum(math.log(e[k] / sum(e[k:])) for k in range(4))


@pytest.mark.parametrize("kind", list(feedback()))
def test_losses_against_loops_over_heads_and_rows(kind: str) -> None:
    net, said = heads(), feedback()[kind]
    found = said.loss(net.scores, ROWS)
    for k in range(2):
        wanted = [by_hand(kind, lambda x: float(net(x)[k]), row) for row in ROWS[k].tolist()]  # noqa: B023
        assert float(found[k].detach()) == pytest.approx(sum(wanted) / 3, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(feedback()))
def test_they_learn_each_kind_and_no_head_knows_of_the_others(kind: str) -> None:
    """A head of an ensemble learns what it would beside others, from batches of its own."""
    said, every = feedback()[kind], torch.arange(40).expand(2, -1)
    net = heads()
    before = said.loss(net.scores, every).detach()
    net.learn(said, updates=60, batch=16)
    assert (said.loss(net.scores, every).detach() < 0.9 * before).all()
    more = heads(3).learn(said, updates=60, batch=16)
    assert torch.equal(more(X)[:2], net(X)) and not torch.equal(net(X)[0], net(X)[1])


@pytest.mark.slow
def test_prompts_chosen_by_what_was_learned_beat_the_best_one_for_all() -> None:
    """Of each question it is known by which of three prompts it is answered: two thirds of the answers are wrong."""
    questions = normal(600, 2, seed=5)
    works = torch.stack(
        [questions[:, 0] > 0.3, (questions[:, 0] <= 0.3) & (questions[:, 1] > 0), questions[:, 1] < 0], 1
    )
    prompts = torch.eye(3, dtype=torch.float64).expand(600, 3, 3)
    states = torch.cat([questions[:, None].expand(600, 3, 2), prompts], -1)  # [Q, P, H]
    learned, asked = slice(0, 400), slice(400, None)
    net = ScoreHeads(states[learned].flatten(0, 1), members=3, seed=0)
    net.learn(Worked(states[learned].flatten(0, 1), works[learned].flatten().double()), updates=300, batch=64)
    chosen = net.best(states[asked])
    right = works[asked].gather(1, chosen[:, None]).double().mean()
    assert chosen.shape == (200,) and right > works[asked].double().mean(0).max() + 0.2
    assert torch.equal(chosen, torch.stack([net(states[asked])[:, :, p].mean(0) for p in range(3)], 1).argmax(1))


def test_states_are_seen_with_mean_0_and_deviation_1() -> None:
    net, moved = heads(), ScoreHeads(X.flatten(0, 1) * 7 + 3, members=2, seed=3)
    torch.testing.assert_close(moved(X * 7 + 3), net(X), atol=1e-12, rtol=0)
    torch.testing.assert_close(net.mean(X), net(X).mean(0))


@pytest.mark.slow
def test_mean_states_are_those_before_each_token_of_the_answer() -> None:
    policy = random_policy(seed=0)
    said = [written(Problem("p", "a"), [Segment("user", u), Segment("assistant", t)], 0, policy)
            for u, t in (("abc", "de"), ("q", "xyzzy"))]  # fmt: skip
    found = mean_states(policy, said)
    for row, episode in enumerate(said):
        ids = [t for s in episode.segments for t in s.tokens]
        acted = [i for i, m in enumerate(m for s in episode.segments for m in s.action_mask) if m]
        with torch.no_grad():
            out = policy.model.model(torch.tensor([ids])).last_hidden_state[0]  # type: ignore[union-attr,operator]
        torch.testing.assert_close(found[row], out[[i - 1 for i in acted]].mean(0), atol=1e-5, rtol=1e-5)
    assert isinstance(said[0], Episode) and len(acted) == 6  # five letters and the end


# Which pairs


@pytest.mark.parametrize("seed", range(5))
def test_each_d_optimal_pair_is_the_one_that_makes_the_most_of_the_determinant(seed: int) -> None:
    d, chance = normal(12, 3, seed=seed), normal(12, seed=seed + 10).sigmoid()
    found, ridge = d_optimal_pairs(d, chance, 5, ridge=0.3).tolist(), 0.3
    assert len(set(found)) == 5

    def logdet(rows: list[int]) -> float:
        a = ridge * torch.eye(3, dtype=torch.float64)
        for i in rows:
            a = a + chance[i] * (1 - chance[i]) * torch.outer(d[i], d[i])
        return float(a.logdet())

    for k in range(5):
        left = [i for i in range(12) if i not in found[:k]]
        assert found[k] == max(left, key=lambda i: logdet([*found[:k], i]))


def test_what_is_certain_is_not_asked_about() -> None:
    d = torch.tensor([[9.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    assert d_optimal_pairs(d, torch.tensor([1.0, 0.5, 0.5]), 2).tolist() == [1, 2]
    assert sorted(d_optimal_pairs(d, torch.full((3,), 0.5), 7).tolist()) == [0, 1, 2]


def test_disagreement_is_the_variance_of_margins_over_heads() -> None:
    margins = normal(4, 9)
    found = disagreed_pairs(margins, 9).tolist()
    spread = [sum((m - sum(c) / 4) ** 2 for m in c) / 4 for c in margins.T.tolist()]
    assert found == sorted(range(9), key=lambda i: -spread[i])
    assert torch.equal(
        disagreed_pairs(margins + normal(9, seed=1), 9), torch.tensor(found)
    )  # a shift is no disagreement


def test_at_random_all_sets_are_as_likely() -> None:
    generator = torch.Generator().manual_seed(0)
    seen = [tuple(sorted(random_pairs(2, 4, generator).tolist())) for _ in range(1200)]
    for two in itertools.combinations(range(4), 2):
        assert abs(seen.count(two) - 200) < 5 * math.sqrt(200)
