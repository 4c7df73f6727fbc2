"""The goal-conditioned reward model: its loss, written out from states, and searches by how near a goal is."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import etude
from etude.core.batches import TokenLogProbs
from etude.core.draws import children, uniforms
from etude.core.episodes import Problem
from etude.core.errors import ConfigError, DataError
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.evaluation.searched import Searched, search_split
from etude.experience.data import Pairs
from etude.methods.preference.goal_conditioned_rm import GoalContrast, states_at
from etude.objectives.preference import BradleyTerry
from etude.planners.goals import FilteredVote, GoalLikeness
from etude.planners.search import Beam, MajorityVote
from etude.planners.trees import Node, Trees
from etude.policies.language import LanguagePolicy
from etude.rewards.model import RewardModel
from language_toys import Toy, random_policy

SHAPE = (4, 6, 3)
LOWEST = 2 * math.log(1 + math.exp(-1))
"""Of the contrast: positives with cosine 1, negatives with -1."""


def pairs_of(seed: int = 0) -> tuple[Any, TokenLogProbs]:
    """Two pairs, whose answers begin at the second token and are from two to five long; states are random."""
    random = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([5, 3, 2, 4])
    places = torch.arange(SHAPE[1])
    mask = (places > 0) & (places <= lengths[:, None])
    batch = SimpleNamespace(
        action_mask=mask, scores=torch.tensor([1.0, 0.0, 0.0, 1.0]), group=torch.tensor([4, 4, 9, 9]), episode=None
    )
    hidden = torch.randn(SHAPE, generator=random, dtype=torch.float64)
    values = torch.randn(SHAPE[:2], generator=random, dtype=torch.float64).requires_grad_(True)
    return batch, TokenLogProbs(values, values=values, hidden=hidden.requires_grad_(True))


def with_hidden(said: TokenLogProbs, hidden: Tensor) -> TokenLogProbs:
    return dataclasses.replace(said, hidden=hidden)


def by_hand(batch: Any, hidden: Tensor, m: int, step: int) -> list[float]:
    """The contrast of both pairs, cosine by cosine, from the same random numbers."""
    found = []
    for group, better, worse in ((4, 0, 1), (9, 3, 2)):
        u = uniforms(children(torch.tensor([group]), "goals", step), 0, 4 * m)[:, 0].tolist()
        own = hidden[better][batch.action_mask[better]].detach()
        other = hidden[worse][batch.action_mask[worse]].detach()

        def at(states: Tensor, share: float) -> Tensor:
            return states[int(share * len(states))]

        sources = [at(own, min(u[k], u[m + k])) for k in range(m)]
        goals = [at(own, max(u[k], u[m + k])) for k in range(m)]
        away, lost = [at(own, x) for x in u[2 * m : 3 * m]], [at(other, x) for x in u[3 * m :]]

        def likeness(some: list[Tensor], ends: list[Tensor]) -> float:
            cosines = [float(a @ b / (a.norm() * b.norm())) for a in some for b in ends]
            return sum(1 / (1 + math.exp(-c)) for c in cosines) / len(cosines)

        found.append(-math.log(likeness(sources, goals)) - math.log(1 - likeness(away, lost)))
    return found


def test_the_contrast_is_that_of_the_equation_and_other_states_are_drawn_each_step() -> None:
    batch, said = pairs_of()
    part: Any = GoalContrast(states=5).bind()
    assert said.hidden is not None
    for step in range(3):
        one, two = by_hand(batch, said.hidden, 5, step)
        assert part.contrast(batch, said).tolist() == pytest.approx([one, one, two, two], abs=1e-12)
        part.after_update(batch)
    assert by_hand(batch, said.hidden, 5, 0) != by_hand(batch, said.hidden, 5, 1)


def test_without_beta_it_is_the_plain_reward_model() -> None:
    batch, said = pairs_of()
    found, plain = GoalContrast(beta=0.0).bind()(batch, said), BradleyTerry()(batch, said)
    assert torch.equal(found, plain)
    (slope,) = torch.autograd.grad(found.sum(), [said.hidden], retain_graph=True)  # type: ignore[list-item]
    assert float(slope.abs().max()) == 0
    whole = GoalContrast(beta=0.5).bind()
    torch.testing.assert_close(whole(batch, said), plain + 0.5 * whole.contrast(batch, said), atol=1e-15, rtol=0)
    (slope,) = torch.autograd.grad(whole(batch, said).sum(), [said.hidden])  # type: ignore[list-item]
    assert bool((slope.abs().sum(-1) > 0)[batch.action_mask].any()) and not bool(slope[~batch.action_mask].any())


def test_its_values_at_no_likeness_and_at_the_best() -> None:
    """2 log 2 where all cosines are 0; -2 log sigmoid(1) where answers point opposite ways; never less."""
    batch, said = pairs_of()
    part: Any = GoalContrast().bind()
    none = part.contrast(batch, with_hidden(said, torch.zeros(SHAPE, dtype=torch.float64)))
    assert none.tolist() == pytest.approx([2 * math.log(2)] * 4, abs=1e-12)
    side = torch.where(batch.scores > 0, 1.0, -1.0).double()[:, None, None]
    best = part.contrast(batch, with_hidden(said, side * torch.ones(SHAPE, dtype=torch.float64)))
    assert best.tolist() == pytest.approx([LOWEST] * 4, abs=1e-12) and round(LOWEST, 4) == 0.6265
    for seed in range(5):
        assert float(part.contrast(*pairs_of(seed)).min().detach()) > LOWEST


def test_the_size_of_states_has_no_say() -> None:
    batch, said = pairs_of()
    assert said.hidden is not None
    part: Any = GoalContrast().bind()
    scale = torch.rand(SHAPE[:2], generator=torch.Generator().manual_seed(1)).double()[..., None] + 0.1
    torch.testing.assert_close(part.contrast(batch, with_hidden(said, scale * said.hidden)), part.contrast(batch, said))


def test_a_source_never_stands_behind_its_goal() -> None:
    """States that say where they stand; and with the mean goal there is one goal for all sources."""
    batch, _ = pairs_of()
    places = torch.arange(SHAPE[1]).double()[None, :, None].expand(4, -1, 1)
    share = uniforms(torch.tensor([3, 8]), 0, 64).T.unflatten(1, (2, 32))
    before, behind = (states_at(batch, places, torch.tensor([0, 3]), s)[..., 0] for s in (share.amin(1), share.amax(1)))
    assert bool((before <= behind).all()) and before.min() == 1 and behind[0].max() == 5 and behind[1].max() == 4
    one_batch, said = pairs_of()
    mean, each = (GoalContrast(mean_goal=m).bind().contrast(one_batch, said) for m in (True, False))
    assert (mean - each).abs().min() > 1e-3


# Searches


class Paired(Toy):
    """The toy task with a pair to each problem, and the last character as an answer's result."""

    def problems(self, split: str) -> list[Problem]:
        made = super().problems(split)
        return [dataclasses.replace(p, info={"chosen": "abc", "rejected": "?!"}) for p in made]

    def answer(self, completion: str) -> str:
        return completion[-1:]


@pytest.fixture(scope="module")
def policy() -> LanguagePolicy:
    return random_policy(seed=0)


@pytest.fixture(scope="module")
def guide() -> GoalLikeness:
    """By another model's states."""
    found: Any = GoalLikeness(scored_by=RewardModel(model="given")).bind()
    found.scored_by.made["scorer"] = random_policy(seed=5)
    return found  # type: ignore[no-any-return]


def voting(guide: GoalLikeness, **changes: Any) -> FilteredVote:
    vote: Any = FilteredVote(samples=4, **changes).bind()
    object.__setattr__(vote, "guide", guide)
    return vote  # type: ignore[no-any-return]


def found_by(policy: LanguagePolicy, search: Any) -> Searched:
    return search_split(policy, Paired(), "test", search, problems=3, seed=1)


def said(found: Searched) -> list[list[int]]:
    return [next(s.tokens for s in e.segments if s.role == "assistant") for e in found.episodes]


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 3])
def test_with_a_threshold_of_minus_one_it_is_a_majority_vote(
    policy: LanguagePolicy, guide: GoalLikeness, every: int
) -> None:
    plain, votes = (
        found_by(policy, MajorityVote(samples=4)),
        found_by(policy, voting(guide, threshold=-1.0, every=every)),
    )
    assert said(votes) == said(plain) and votes.tokens.tolist() == plain.tokens.tolist()
    all_lost = found_by(policy, voting(guide, threshold=1.0, skip=1, every=every))
    assert said(all_lost) == said(plain) and all_lost.tokens.tolist() == plain.tokens.tolist()


class SecondToken(GoalLikeness):
    """Likes answers whose second token is even."""

    def along(self, nodes: Sequence[Node], trees: Trees) -> list[list[float]]:
        return [[-1.0 if k == 1 and t % 2 else 1.0 for k, t in enumerate(node.tokens)] for node in nodes]


@pytest.mark.slow
def test_what_looks_lost_is_left_off_at_once_and_does_not_vote(policy: LanguagePolicy) -> None:
    """Held against all answers in full: those that stay vote, those that are lost cost two tokens."""
    task, context = Paired(), Context(Paired(), policy, Stream(1).split("evaluation", "test"), max_tokens=8)
    trees = Trees(task.problems("test"), context, *[MajorityVote(samples=16).step(how(context))] * 2)
    groups = trees.complete(trees.roots, 16)
    search: Any = FilteredVote(samples=16, guide=SecondToken(), skip=1).bind()
    found = found_by(policy, search)
    for group, tokens, answer in zip(groups, found.tokens.tolist(), said(found)):
        lost = [len(n.tokens) > 1 and n.tokens[1] % 2 == 1 for n in group]
        assert any(lost) and not all(lost)
        assert tokens == sum(2 if bad else len(n.tokens) for n, bad in zip(group, lost))
        kept = [n for n, bad in zip(group, lost) if not bad]
        assert answer == MajorityVote(samples=16)._elected(kept, trees).tokens
    assert found_by(policy, search.replace(skip=2).bind()).tokens.sum() > found.tokens.sum()


def how(context: Context) -> Any:
    from etude.experience.groups import Groups

    return Groups().sampling(context)


@pytest.mark.slow
def test_q_is_the_cosine_with_the_mean_state_at_the_end_of_preferred_answers(
    policy: LanguagePolicy, guide: GoalLikeness
) -> None:
    """Against the scorer's model itself, run over every beginning."""
    task: Any = Paired()
    context = Context(task, policy, Stream(0), max_tokens=8)
    trees = Trees(task.problems("test")[:1], context, how(context), how(context))
    (nodes,) = trees.complete(trees.roots, 2)
    scorer: Any = guide.scored_by.made["scorer"]

    def state(ids: list[int]) -> Tensor:
        with torch.no_grad():
            out = scorer.model.model(torch.tensor([ids]))
        return out.last_hidden_state[0, -1]  # type: ignore[no-any-return]

    ends = [state(policy.encode(f"{p.prompt}abc")) for p in task.problems("train")]
    goal = torch.stack(ends).mean(0)
    torch.testing.assert_close(guide.goal(context), goal, atol=1e-5, rtol=1e-4)
    prompt = policy.encode(task.prompts[0])
    for node, along, value in zip(nodes, guide.along(nodes, trees), guide.values(nodes, trees)):
        size = len(node.tokens) - (node.tokens[-1] in policy.end_ids)
        states = [state([*prompt, *node.tokens[:t]]) for t in range(1, size + 1)]
        cosines = [float(torch.cosine_similarity(h, goal, dim=0)) for h in states]
        assert along == pytest.approx(cosines, abs=1e-4)
        near = float(torch.cosine_similarity(torch.stack(states).mean(0), goal, dim=0))
        logp = sum(node.logp) / len(node.logp)
        assert value == pytest.approx(1 / (1 + math.exp(-logp - near)), abs=1e-4)


@pytest.mark.slow
def test_a_beam_is_steered_towards_the_goal(policy: LanguagePolicy, guide: GoalLikeness) -> None:
    """By the goal alone a beam comes nearer to it than whole answers of the policy do on average."""
    alone: Any = GoalLikeness(likelihood=0.0).bind()
    alone.scored_by.made.update(guide.scored_by.made)
    wide = Beam(width=2, branch=4, step_tokens=2).bind()
    object.__setattr__(wide, "guide", alone)
    found = found_by(policy, wide)
    context = Context(Paired(), policy, Stream(0), max_tokens=8)
    task: Any = Paired()
    trees = Trees(task.problems("test"), context, how(context), how(context))
    for answer, root, group in zip(said(found), trees.roots, trees.complete(trees.roots, 8)):
        steered = Node(root.tree, root.draw, root.row, root, answer, [0.0] * len(answer))
        others = alone.values(group, trees)
        assert alone.values([steered], trees)[0] > sum(others) / len(others)


@pytest.mark.slow
def test_it_is_asked_by_its_name(tmp_path: Path) -> None:
    """As `etude evaluate` has it, with the folder of a reward model."""
    scorer = random_policy(seed=5)
    scorer.add_value_head()
    scorer.save(tmp_path)
    own = f"filtered-vote:2,threshold=-1,guide.scored_by.model={tmp_path}"
    paid = f"beam:1,branch=1,separator=>,guide=paid,guide.reward=reward-model,guide.reward.model={tmp_path}"
    found, plain, guided = (
        etude.evaluate("tiny", "preferences", search=search, problems=1, split="test")["test"]
        for search in (own, "majority-vote:2", paid)
    )
    assert {k: v.value for k, v in found.items()} == {k: v.value for k, v in plain.items()}
    assert guided["tokens"].value > 0


def test_what_a_goal_cannot_be_made_of_is_told(policy: LanguagePolicy) -> None:
    part: Any = GoalLikeness().bind()
    part.scored_by.made["scorer"] = random_policy(seed=5)
    with pytest.raises(DataError, match="has no 'chosen' answer"):
        part.goal(Context(Toy(), policy, Stream(0)))
    assert Pairs().missing(Paired().problems("train")[0], Paired()) is None
    other = SimpleNamespace(tokenizer=SimpleNamespace(get_vocab=dict))
    part.scored_by.made["scorer"] = other
    with pytest.raises(ConfigError, match="take a reward model of the same tokenizer"):
        part.goal(Context(Paired(), policy, Stream(0)))
