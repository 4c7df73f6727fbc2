"""Searching for an answer: limits of each search that are known, and what guides say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from etude.core.draws import Draw
from etude.core.episodes import Episode
from etude.core.errors import ConfigError, UnknownNameError
from etude.core.slots import Context, Reward
from etude.core.streams import Stream
from etude.evaluation.language import evaluate_split
from etude.evaluation.searched import search_split
from etude.experience.groups import Groups
from etude.planners.guides import Guide, Lookahead, MeanLikelihood, Paid, Verifier
from etude.planners.search import Beam, BestOf, MajorityVote, Search, TreeSearch, back_up, below
from etude.planners.trees import Node, Trees
from etude.policies.language import LanguagePolicy
from etude.runs.searching import search_of
from etude.tasks.language.compose import compose
from language_toys import Toy, random_policy

pytestmark = pytest.mark.usefixtures("one_thread")


class Vowels(Reward):
    """Pays for vowels, to see a guide follow."""

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float]:
        return [float(sum(c in "aeiou" for c in e.completion)) for e in episodes]


@pytest.fixture(scope="module")
def tiny() -> LanguagePolicy:
    return LanguagePolicy.load("tiny")


def planted(policy: LanguagePolicy, task: Any, search: Search, count: int = 3, seed: int = 5) -> Trees:
    """Trees of the first problems, as the search would have them."""
    whole = Groups().sampling(Context(task, policy, Stream(seed), max_tokens=task.max_tokens))
    context = Context(task, policy, Stream(seed), max_tokens=task.max_tokens)
    return Trees([task.problems("train")[i] for i in range(count)], context, whole, search.step(whole))


# More samples


def test_best_of_one_is_the_policy(tiny: LanguagePolicy) -> None:
    plain = evaluate_split(tiny, compose, "test", problems=40, samples=1)
    for search in (BestOf(samples=1), MajorityVote(samples=1)):
        found = search_split(tiny, compose, "test", search, problems=40)
        assert [e.completion for e in found.episodes] == [row[0].completion for row in plain.episodes]
        assert (found.correct == plain.correct[:, 0]).all() and 5 < found.correct.sum() < 35
        assert found.tokens.tolist() == [row[0].action_count for row in plain.episodes]


@pytest.mark.slow
def test_best_of_n_with_the_verifier_is_pass_at_n_and_with_the_likelihood_the_likeliest(tiny: LanguagePolicy) -> None:
    plain = evaluate_split(tiny, compose, "test", problems=40, samples=6)
    found = search_split(tiny, compose, "test", BestOf(samples=6, guide=Verifier()), problems=40)
    assert (found.correct == plain.correct.any(1)).all()
    assert found.tokens.tolist() == [sum(e.action_count for e in row) for row in plain.episodes]
    likely = search_split(tiny, compose, "test", BestOf(samples=6), problems=40)
    for row, chosen in zip(plain.episodes, likely.episodes):
        means = [np.mean(e.segments[-1].behaviour_logp) for e in row]
        assert chosen.completion == row[int(np.argmax(means))].completion


@pytest.mark.slow
def test_the_majority_is_that_of_the_same_samples(tiny: LanguagePolicy) -> None:
    plain = evaluate_split(tiny, compose, "test", problems=40, samples=7)
    found = search_split(tiny, compose, "test", MajorityVote(samples=7), problems=40)
    unequal = 0
    for answers, episode in zip(plain.answers, found.episodes):
        counts = sorted(((answers.count(a), a) for a in {*answers} if a), reverse=True)
        assert answers.count(compose.answer(episode.completion)) == counts[0][0]
        if len(counts) == 1 or counts[0][0] > counts[1][0]:
            assert compose.answer(episode.completion) == counts[0][1]
            unequal += 1
    assert unequal > 20


@pytest.mark.slow
def test_no_answer_depends_on_which_other_problems_there_are(tiny: LanguagePolicy, monkeypatch: Any) -> None:
    searches = [BestOf(samples=3), Beam(width=2, branch=2, separator=">"), TreeSearch(simulations=6, separator=">")]
    for search in searches:
        many = search_split(tiny, compose, "test", search, problems=9)
        few = search_split(tiny, compose, "test", search, problems=4)
        monkeypatch.setattr("etude.evaluation.searched.ROWS", 8)
        cut = search_split(tiny, compose, "test", search, problems=9)
        monkeypatch.undo()
        assert [e.completion for e in many.episodes[:4]] == [e.completion for e in few.episodes]
        assert [e.completion for e in many.episodes] == [e.completion for e in cut.episodes]
        assert many.tokens.tolist() == cut.tokens.tolist()


# Beams


def greedy(trees: Trees, guide: Guide, branch: int) -> list[list[int]]:
    """Of as many next steps the best one, again and again, for one tree after the other."""
    found = []
    for node in trees.roots:
        while not node.ended:
            trees.expand([node], branch)
            values = guide.values(node.children, trees)
            node = node.children[int(np.argmax(values))]
        found.append(node.tokens)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("guide", [MeanLikelihood(), Lookahead(samples=2, of=MeanLikelihood())])
def test_a_beam_of_width_one_is_greedy_over_steps(guide: Guide) -> None:
    policy, task = random_policy(), Toy(max_tokens=9)
    search = Beam(width=1, branch=3, separator="\x00never", step_tokens=2, guide=guide)
    one_by_one = greedy(planted(policy, task, search), guide, 3)
    assert [n.tokens for n in search.find(planted(policy, task, search))] == one_by_one


def test_a_beam_that_is_wide_enough_drops_nothing() -> None:
    policy, task = random_policy(), Toy(max_tokens=6)
    search = Beam(width=40, branch=1, separator="\x00never", step_tokens=3)
    trees = planted(policy, task, search)
    best = search.find(trees)
    for root, chosen in zip(trees.roots, best):
        leaves = [n for n in below(root) if not n.children]
        assert all(n.ended for n in leaves)
        assert MeanLikelihood().values([chosen], trees)[0] == max(MeanLikelihood().values(leaves, trees))


def test_what_is_said_twice_stands_once(tiny: LanguagePolicy) -> None:
    trees = planted(tiny, compose, search := Beam(width=2, branch=8, separator=">"))
    trees.expand(trees.roots, 16)
    for root in trees.roots:
        texts = [tuple(n.tokens) for n in root.children]
        assert len({*texts}) == len(texts) < 16 and sum(n.times for n in root.children) == 16
        assert sum(n.prior for n in root.children) == pytest.approx(1)
    assert search.rows == 16


def test_steps_end_at_the_separator_and_answers_at_their_limit() -> None:
    policy, task = random_policy(), Toy(max_tokens=7)
    for search in (Beam(step_tokens=3, separator="\x00never"), Beam(step_tokens=3, separator="e")):
        trees = planted(policy, task, search)
        trees.expand(trees.roots, 6)
        for _ in range(2):
            trees.expand([n for root in trees.roots for n in below(root) if not n.children and not n.ended], 2)
        nodes = [n for root in trees.roots for n in below(root) if n.parent is not None]
        for node in nodes:
            assert node.parent is not None
            said = policy.decode(node.tokens[len(node.parent.tokens) :])
            length = len(node.tokens) - len(node.parent.tokens)
            assert length <= 3 and len(node.tokens) <= 7 and len(node.logp) == len(node.tokens)
            assert length == 3 or node.ended or search.separator in said
            assert not node.ended or node.tokens[-1] in policy.end_ids or len(node.tokens) == 7
        assert any(n.ended for n in nodes) and any(not n.ended for n in nodes)


def test_nothing_is_read_twice(tiny: LanguagePolicy) -> None:
    tiny.work.clear()
    search_split(tiny, compose, "test", Beam(width=3, branch=2, separator=">", guide=Lookahead(samples=2)), problems=5)
    assert tiny.work["prefilled_again"] == 0
    prompts = sum(len(tiny.encode(str(compose.problems("test")[i].prompt))) for i in range(5))
    assert tiny.work["prefilled_tokens"] < 3 * prompts + tiny.work["sampled_tokens"]


# Trees


def test_a_tree_search_goes_by_the_formula() -> None:
    """Down, judge, back up, by hand: two steps after the root, of which one was said three times of four."""
    search = TreeSearch(exploration=2.0)
    root = Node(0, Draw(0), 0)
    often, once = Node(0, Draw(1), 1, root, times=3), Node(0, Draw(2), 2, root, times=1)
    root.children += [once, often]
    assert search.score(often) == 1.5 and search.score(once) == 0.5  # c P sqrt(1) / 1
    often.value = 0.25
    back_up(often)
    assert (root.visits, root.total, often.visits, often.mean) == (1, 0.25, 1, 0.25)
    assert search.score(often) == 0.25 + 2 * 0.75 * 1 / 2 and search.score(once) == 0.5
    back_up(often)
    assert search.score(often) == pytest.approx(0.25 + 2 * 0.75 * math.sqrt(2) / 3)
    assert search.score(once) == pytest.approx(2 * 0.25 * math.sqrt(2))
    assert search._down(root) is often
    back_up(often)
    back_up(often)
    assert search._down(root) is once, "tried less, it is its turn"


def test_every_simulation_judges_one_node_and_counts_on_its_way(tiny: LanguagePolicy) -> None:
    search = TreeSearch(simulations=12, branch=3, separator=">", guide=Lookahead(samples=1))
    trees = planted(tiny, compose, search, count=4)
    search.find(trees)
    for root in trees.roots:
        assert root.visits == 12
        for node in below(root):
            own = node.visits - sum(n.visits for n in node.children)
            assert own >= 0 and 0 <= node.mean <= 1
            if node.children and node.parent is not None:
                assert own == 1, "it was judged once before it was expanded"
            if node.children:
                assert node.total == pytest.approx(sum(n.total for n in node.children) + own * (node.value or 0))


@pytest.mark.slow
def test_more_searching_finds_more(tiny: LanguagePolicy) -> None:
    """With an oracle for a guide, and more tokens each time."""
    found = [
        search_split(tiny, compose, "heldout", TreeSearch(simulations=n, separator=">"), problems=30) for n in (1, 8)
    ]
    for less, more in pairwise(found):
        assert more.correct.sum() > less.correct.sum() and more.tokens.mean() > less.tokens.mean()
    plain = search_split(tiny, compose, "heldout", BestOf(samples=1), problems=30)
    beam = search_split(
        tiny, compose, "heldout", Beam(width=2, branch=2, separator=">", guide=Lookahead()), problems=30
    )
    assert beam.correct.mean() > plain.correct.mean() + 0.2


# Guides


def test_lookahead_is_the_mean_over_answers_that_go_on(tiny: LanguagePolicy) -> None:
    trees = planted(tiny, compose, Beam(separator=">"), count=6)
    trees.expand(trees.roots, 2)
    nodes = [n for root in trees.roots for n in root.children]
    values = Lookahead(samples=4).values(nodes, trees)
    leaves = trees.complete([n for n in nodes if not n.ended], 4)
    by_hand = iter(np.mean([compose.success(e) for e in trees.judged(group)]) for group in leaves)
    whole = [float(compose.success(trees.judged([n])[0])) if n.ended else next(by_hand) for n in nodes]
    assert values == whole and 0 < np.mean(values) < 1
    for node, group in zip([n for n in nodes if not n.ended], leaves):
        assert all(leaf.tokens[: len(node.tokens)] == node.tokens and leaf.ended for leaf in group)
        assert all(len(leaf.logp) == len(leaf.tokens) for leaf in group)


def test_a_reward_can_guide() -> None:
    policy, task = random_policy(), Toy(max_tokens=24)
    search = BestOf(samples=6, guide=Paid(reward=Vowels()))
    chosen = search.find(planted(policy, task, search))
    trees = planted(policy, task, search)
    spread = 0
    for group, best in zip(trees.complete(trees.roots, 6), chosen):
        paid = [sum(c in "aeiou" for c in policy.decode(n.tokens)) for n in group]
        assert best.tokens == group[int(np.argmax(paid))].tokens
        spread += max(paid) > min(paid)
    assert spread


# As it is asked for


def test_a_search_is_named_with_its_fields() -> None:
    assert search_of("best-of:16,guide=verifier") == BestOf(samples=16, guide=Verifier())
    assert search_of(r"beam:2,separator=\n,branch=3") == Beam(width=2, branch=3)
    assert search_of("tree-search:9,separator=,,guide.samples=3") == TreeSearch(
        simulations=9, separator=",", guide=Lookahead(samples=3)
    )
    assert search_of(own := MajorityVote(samples=2)) is own


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("beem:2", "Did you mean 'beam'"),
        ("beam:0", "at least 1"),
        ("beam:2,with=3", "field of Beam named 'with'.*'width'"),
        ("beam,guide=verifier", "says nothing of the beginning of an answer"),
        ("beam,separator=", "must be the text that ends a step"),
        ("best-of,guide=lookahed", "Did you mean 'lookahead'"),
    ],
)
def test_what_cannot_be_searched_with_gets_a_sentence(said: str, why: str) -> None:
    with pytest.raises((ConfigError, UnknownNameError), match=why):
        search_of(said)
