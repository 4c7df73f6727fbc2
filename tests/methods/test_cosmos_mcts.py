"""COS(M+O)S: the way down a tree and back up, the pairs it gives, what makes a beginning worth telling, and ORPO."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from etude.core.batches import TokenLogProbs
from etude.core.draws import Draw
from etude.core.errors import DataError
from etude.core.registry import get_method
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.loops.language import LanguageLoop
from etude.methods.preference.cosmos_mcts import (
    UCT,
    Beginning,
    CuriousValue,
    PairsBySearch,
    Scale,
    beginnings,
    curiosity,
    values,
)
from etude.planners.guides import Guide, MeanLikelihood
from etude.planners.search import below
from etude.planners.trees import Node, Trees
from etude.policies.sampling import Sampling
from etude.tasks import resolve_task
from language_toys import Toy, draws, random_policy

pytestmark = pytest.mark.usefixtures("one_thread")


class Fixed(Guide):
    """Worth by the first token, whatever follows."""

    def values(self, nodes: Any, trees: Any) -> list[float]:
        return [(0.9, 0.5, 0.2)[n.tokens[0]] for n in nodes]


class Made:
    """A stand-in for `Trees`: three ways at the root, nothing behind them."""

    def __init__(self) -> None:
        self.roots = [Node(0, Draw(0), 0)]

    def expand(self, nodes: Any, count: int) -> None:
        for node in nodes:
            made = [Node(0, Draw(i), i, node, [*node.tokens, i], [-1.0], ended=True) for i in range(3)]
            node.children += made[:count]

    def complete(self, nodes: Any, count: int) -> list[list[Node]]:
        assert not nodes
        return []


def visits(simulations: int, exploration: float) -> list[int]:
    trees: Any = Made()
    found = UCT(simulations=simulations, branch=3, exploration=exploration, guide=Fixed()).find(trees)
    (root,) = trees.roots
    assert root.visits == simulations == sum(n.visits for n in root.children)
    assert all(n.total == pytest.approx(n.visits * (0.9, 0.5, 0.2)[n.tokens[0]]) for n in root.children)
    assert found == [root.children[0]]
    return [n.visits for n in root.children]


# The search


def test_every_way_from_the_root_comes_again_and_again_and_the_best_most_often() -> None:
    few, more, many = (visits(n, 1.0) for n in (30, 300, 3000))
    assert all(a < b < c for a, b, c in zip(few, more, many))
    assert many[0] > many[1] > many[2] > 5
    assert visits(300, 0.0) == [298, 1, 1]  # greedy, once every way was seen


def test_the_bonus_is_that_of_the_equation() -> None:
    root = Node(0, Draw(0), 0, visits=50)
    child = Node(0, Draw(1), 1, root, visits=7, total=2.1)
    assert UCT(exploration=0.4).score(child) == pytest.approx(0.3 + 0.4 * math.sqrt(math.log(50) / 7), abs=1e-12)
    assert UCT(exploration=0.0).score(child) == pytest.approx(0.3, abs=1e-12)
    assert UCT().score(Node(0, Draw(2), 2, root)) == math.inf


class Letters(Toy):
    """Steps of two tokens each, six at most."""


LETTERS = Letters(max_tokens=12)


def grown(search: UCT, seed: int = 3, count: int = 2) -> tuple[Trees, list[Node]]:
    context = Context(LETTERS, random_policy(seed=2), Stream(seed), max_tokens=12)
    whole = Sampling(max_tokens=12)
    trees = Trees(LETTERS.problems("train")[:count], context, whole, search.step(whole))
    return trees, search.find(trees)


SMALL = UCT(simulations=24, branch=3, step_tokens=2, guide=MeanLikelihood())


@pytest.mark.slow
def test_q_is_the_mean_of_all_that_was_backed_up_through_it() -> None:
    trees, _ = grown(SMALL)
    checked = 0
    for root in trees.roots:
        assert root.visits == 24
        for node in below(root):
            if not node.visits:
                continue
            own = 0 if node.parent is None else node.visits - sum(n.visits for n in node.children)
            assert own >= 0
            found = [n.total for n in node.children] + [own * (node.value or 0.0)]
            assert node.total == pytest.approx(sum(found), abs=1e-9)
            checked += 1
    assert checked > 20


@pytest.mark.slow
def test_with_one_way_and_no_bonus_it_is_plain_decoding() -> None:
    """One line of steps, none of which was chosen among others, each by the policy's own chances; to the end."""
    trees, found = grown(UCT(simulations=20, branch=1, exploration=0.0, step_tokens=2, guide=MeanLikelihood()))
    for root, answer in zip(trees.roots, found):
        line = below(root)
        assert all(len(n.children) <= 1 and n.times == 1 for n in line) and line[-1] is answer and answer.ended
        assert [n.tokens for n in line[1:]] == [n.tokens for n in answer.path]
        assert trees.generated[root.tree] == len(answer.tokens)


@pytest.mark.slow
def test_the_likeliest_steps_joined_are_the_greedy_text() -> None:
    """One way and no bonus at temperature 0, as `generate` says it at once."""
    search = UCT(simulations=20, branch=1, exploration=0.0, step_tokens=2, depth=9, guide=MeanLikelihood())
    whole = Sampling(temperature=0.0, max_tokens=12)
    policy, problems = random_policy(seed=2), LETTERS.problems("train")[:4]
    trees = Trees(problems, Context(LETTERS, policy, Stream(3), max_tokens=12), whole, search.step(whole))
    found = search.find(trees)
    prompts = [[t for segment in opening for t in segment.tokens] for opening in trees.openings]
    at_once = policy.generate(prompts, whole, draws(4))
    assert [n.tokens for n in found] == [c.tokens for c in at_once]
    assert len({tuple(c.tokens) for c in at_once}) > 1 and max(len(n.path) for n in found) > 3
    for node, completion in zip(found, at_once):
        assert node.logp == pytest.approx(completion.logp, abs=1e-5)


@pytest.mark.slow
def test_a_text_is_cut_at_its_depth() -> None:
    trees, _ = grown(SMALL.replace(depth=2))
    assert max(len(n.path) for root in trees.roots for n in below(root)) == 2
    assert {n.ended for root in trees.roots for n in below(root) if len(n.path) == 2} == {True}


# Pairs


def tree() -> Node:
    """After the root three actions, one of which was seen in two steps; after one of them two more."""
    root = Node(0, Draw(0), 0)
    for tokens, count, total in (([5, 6], 2, 1.0), ([5, 7], 1, 0.8), ([8, 6], 4, 0.4), ([9, 6], 1, 0.3)):
        root.children.append(Node(0, Draw(1), 1, root, tokens, visits=count, total=total))
    for tokens, count, total in (([5, 6, 1], 1, 0.5), ([5, 6, 2], 1, 0.48)):
        root.children[0].children.append(Node(0, Draw(2), 2, root.children[0], tokens, visits=count, total=total))
    return root


def test_the_best_and_the_worst_action_of_a_node_are_a_pair_where_they_are_far_enough_apart() -> None:
    root, part = tree(), PairsBySearch(visits=1)
    assert {a: (pytest.approx(q), n) for a, (q, n) in values(root, 1).items()} == {
        (5,): (0.6, 3), (8,): (0.1, 4), (9,): (0.3, 1)
    }  # fmt: skip
    assert part.pair(root) == (root, (5,), (8,))
    assert PairsBySearch(margin=0.5, visits=1).pair(root) is None  # 0.6 and 0.1 are not more than that apart
    assert PairsBySearch(visits=4).pair(root) is None and PairsBySearch(visits=3).pair(root) == (root, (5,), (8,))
    assert part.pair(root.children[0]) is None and part.pair(root.children[1]) is None
    assert PairsBySearch(margin=0.01, visits=1).pair(root.children[0]) == (root.children[0], (1,), (2,))
    assert values(root, 2).keys() == {(5, 6), (5, 7), (8, 6), (9, 6)}


@pytest.mark.slow
def test_rows_show_the_beginning_and_are_learned_at_the_action() -> None:
    context = Context(LETTERS, random_policy(seed=2), Stream(3), max_tokens=12)
    part = PairsBySearch(search=SMALL, margin=0.0, visits=1)
    problems = LETTERS.problems("train")[:2]
    episodes = part.collect(problems, context)
    trees, _ = grown(SMALL)
    wanted = [(root.tree, pair) for root in trees.roots for n in below(root) if (pair := part.pair(n)) is not None]
    assert len(wanted) > 3 and len(episodes) == 2 * len(wanted)
    assert [e.group for e in episodes] == [g for g in range(len(wanted)) for _ in (0, 1)]
    for (place, (node, best, worst)), *rows in zip(wanted, episodes[::2], episodes[1::2]):
        for row, action, paid in zip(rows, (best, worst), (1.0, 0.0)):
            opened = [t for s in trees.openings[place] for t in s.tokens]
            assert row.tokens == [*opened, *node.tokens, *action] and row.reward == paid and row.written
            assert [m for s in row.segments for m in s.action_mask] == [0] * (len(row.tokens) - 1) + [1]
            assert row.problem is problems[place]
    silent = PairsBySearch(search=SMALL, margin=9.0).collect(problems, context)
    assert [(e.group, e.reward, e.action_count) for e in silent] == [(0, 0.0, 1), (1, 0.0, 1)]


# What a beginning is worth


def test_curiosity_is_nothing_at_both_ends_and_one_half_way() -> None:
    assert (curiosity(0.0), curiosity(1.0), curiosity(0.5)) == (0.0, 0.0, 1.0)
    assert curiosity(0.3) == pytest.approx(curiosity(0.7)) == pytest.approx(0.84)


def test_the_three_features_by_hand() -> None:
    scale, part = Scale(1.0, 3.0, 2.0), CuriousValue(repeated=0.7, startling=0.5, dull=0.25, size=2)
    assert part.features(Beginning([5, 6, 5, 6], [1.0, 2.0, 3.0, 0.0]), scale) == pytest.approx(
        (0.25, 0.75, 1 - 0.7 / 3 - 0.5 * 0.5), abs=1e-12
    )
    assert part.features(Beginning([5], [0.4]), scale) == pytest.approx((0.0, 0.0, 1 - 0.25 * 0.6), abs=1e-12)
    assert part.features(Beginning([5], [9.0]), scale) == pytest.approx((1.0, 0.0, 0.5), abs=1e-12)


STORIES = resolve_task("grammar-stories")


@pytest.fixture(scope="module")
def story() -> Any:
    from etude.policies.language import LanguagePolicy

    torch.manual_seed(0)
    return LanguagePolicy.load("blank:1x16x2@stories", device="cpu")


@pytest.mark.slow
def test_the_corpus_are_beginnings_of_scored_answers_with_the_policys_surprisal(story: Any) -> None:
    context = Context(STORIES, story, Stream(0), max_tokens=21)
    texts, labels = beginnings(3, context, ".")
    problems = [STORIES.problems("train")[i] for i in range(3)]
    scores = [s for p in problems for s in p.info["scores"] for _ in range(5)]
    assert labels == pytest.approx(scores, abs=1e-6) and [len(t.tokens) for t in texts[:5]] == [4, 8, 12, 16, 20]
    assert story.decode(list(texts[4].tokens)) == problems[0].info["responses"][0]
    ids = torch.tensor([story.encode(problems[0].prompt) + list(texts[4].tokens)])
    logp = story.model(ids).logits[0].log_softmax(-1)[:-1].gather(1, ids[0, 1:, None])[-20:, 0]
    torch.testing.assert_close(torch.tensor(texts[4].surprisal), -logp.detach(), atol=1e-4, rtol=0)
    whole, _ = beginnings(1, context, "")
    assert [len(t.tokens) for t in whole] == [21] * 4  # with the end
    with pytest.raises(DataError, match="no answers with scores from 0 to 1"):
        beginnings(1, Context(resolve_task("sorting"), story, Stream(0)), ".")


@pytest.mark.slow
def test_v_is_fitted_to_them_once_for_all_trees_and_the_same_for_the_same_policy(story: Any) -> None:
    part = CuriousValue(problems=24)
    context = Context(STORIES, story, Stream(5), max_tokens=21)
    trees: Any = SimpleNamespace(made={}, context=context, step=Sampling(stop=(".",)), sampling=Sampling())
    nodes = [Node(0, Draw(0), 0, tokens=[5, 6, 7, 3], logp=[-x] * 4) for x in (0.5, 4.0, 9.0)]
    found = part.values(nodes, trees)
    assert all(0 <= v <= 1 for v in found) and len({*found}) > 1
    known = trees.made["curious-value"]
    assert part.values(nodes[:1], trees) == pytest.approx(found[:1]) and trees.made["curious-value"] is known
    again: Any = SimpleNamespace(made={}, context=context, step=trees.step, sampling=trees.sampling)
    assert part.values(nodes, again) == found
    texts, labels = beginnings(24, context, ".")
    means, largest = ([f(t.surprisal) for t in texts] for f in (np.mean, np.max))
    quantiles = (np.quantile(means, 0.05), np.quantile(means, 0.95), np.quantile(largest, 0.95))
    assert tuple(known[0]) == pytest.approx(quantiles, rel=1e-5) and known[0].low < known[0].high < known[0].largest
    said = known[1](torch.tensor([part.features(t, known[0]) for t in texts])).detach()
    wanted = torch.tensor(labels)
    assert float(((said - wanted) ** 2).mean()) < float(wanted.var())  # more than nothing is learned


# What is learned


def rows() -> Any:
    found = SimpleNamespace(scores=torch.tensor([1.0, 0.0], dtype=torch.float64), group=torch.zeros(2))
    found.action_mask, found.action_counts = torch.ones(2, 1).double(), torch.tensor([1, 1])
    found.episode, found.once = None, lambda: None
    return found


def test_the_loss_is_orpos_of_an_action() -> None:
    method: Any = get_method("cosmos-mcts")
    logp = torch.tensor([[0.6], [0.3]], dtype=torch.float64).log()
    odds = math.log(0.6 / 0.4) - math.log(0.3 / 0.7)
    wanted = -math.log(0.6) - 0.1 * math.log(1 / (1 + math.exp(-odds)))
    assert method.objective(rows(), TokenLogProbs(logp)).tolist() == pytest.approx([wanted] * 2, abs=1e-12)
    nothing = method.objective.replace(weight=1e-12)
    assert nothing(rows(), TokenLogProbs(logp)).tolist() == pytest.approx([-math.log(0.6)] * 2, abs=1e-9)
    alike = torch.full((2, 1), 0.25, dtype=torch.float64).log()
    odds_alone = method.objective.replace(nll=0.0, weight=1.0)
    assert odds_alone(rows(), TokenLogProbs(alike)).tolist() == pytest.approx([math.log(2)] * 2, abs=1e-12)


@pytest.mark.slow
def test_a_round_searches_and_learns_and_comes_to_the_same_numbers_again(story: Any) -> None:
    import copy

    method: Any = get_method("cosmos-mcts")
    part = method.experience.replace(search=method.experience.search.replace(simulations=10))
    part = part.replace(search=part.search.replace(guide=CuriousValue(problems=8)), margin=0.001)
    lines = []
    for _ in range(2):
        loop = LanguageLoop(method.replace(experience=part, problems=3), STORIES, copy.deepcopy(story), seed=0, steps=2)
        lines.append([loop.step().metrics for _ in range(2)])
    same = ("loss", "margin", "rows", "gradient_norm")
    assert [[m[k] for k in same] for m in lines[0]] == [[m[k] for k in same] for m in lines[1]]
    assert lines[0][0]["gradient_norm"] > 0 and lines[0][0]["rows"] >= 3


def test_a_task_of_several_turns_is_refused() -> None:
    assert "has several" in (PairsBySearch().lacks(resolve_task("number-hunt")) or "")
    assert PairsBySearch().lacks(STORIES) is None
