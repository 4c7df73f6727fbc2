"""o1-roadmap: what a search came to as rows, what is learned from them, and what its study and claim compare."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace as Rows
from typing import Any, cast

import pytest
import torch

from etude.advantages.returns import RewardToGo
from etude.core.batches import TokenBatch
from etude.core.complete import complete_token
from etude.core.draws import Draw
from etude.core.edit import assignments, set_values
from etude.core.episodes import Episode, Problem
from etude.core.errors import ConfigError
from etude.core.fit import check
from etude.core.kinds import TokenMethod
from etude.core.registry import get_method
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.experience.groups import Groups
from etude.methods.rlvr.o1_roadmap import o1_roadmap
from etude.planners.guides import Lookahead, MeanLikelihood, Verifier
from etude.planners.search import Beam, BestOf, Search, TreeSearch
from etude.planners.searched import GroupsBySearch, GuidePotential, SettledAnswers, VisitShares
from etude.planners.trees import Node
from etude.tasks.agents.attr_20q import attr_20q
from etude.tasks.language.compose import compose
from language_toys import Toy, make_loop, random_policy

pytestmark = pytest.mark.usefixtures("one_thread")
F64 = torch.float64


def vowel(problem: Problem, completion: str) -> float:
    return float(any(c in "aeiouAEIOU" for c in completion))


TASK = Toy(scoring=vowel, max_tokens=6)
NEVER = "\x00never"
BEAM = Beam(width=2, branch=2, separator=NEVER, step_tokens=2, guide=Lookahead(samples=2))
TREE = TreeSearch(simulations=12, branch=3, separator=NEVER, step_tokens=3)


def collected(part: Groups) -> list[Episode]:
    policy = random_policy()
    context = Context(TASK, policy, Stream(5), max_tokens=TASK.max_tokens)
    return part.bind().collect(TASK.problems("train"), context)


# What a search came to


@pytest.mark.slow
def test_best_of_n_learns_from_the_groups_that_are_sampled_without_a_search() -> None:
    """Identity 3: the search-free form of every learner, number by number."""
    plain, found = (collected(part) for part in (Groups(size=4), GroupsBySearch(search=BestOf(samples=4), size=4)))
    assert len(plain) == len(found)
    for one, other in zip(plain, found):
        assert (one.group, one.reward, one.completion) == (other.group, other.reward, other.completion)
        assert one.segments[-1].tokens == other.segments[-1].tokens and one.stop == other.stop
        assert one.segments[-1].behaviour_logp == pytest.approx(other.segments[-1].behaviour_logp)
        assert other.segments[-1].action_mask == [1] * len(other.segments[-1].tokens)
    assert {e.reward for e in found} == {0.0, 1.0}


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 4])
def test_a_step_of_grpo_on_best_of_n_is_that_on_its_samples(size: int) -> None:
    """Identity 3 to the end: the same weights, of one sample a problem, which cannot differ from itself, as well."""
    weights, metrics = [], []
    for experience in (Groups(size=size), GroupsBySearch(search=BestOf(samples=size), size=size)):
        method = cast(TokenMethod, get_method("reinforce" if size == 1 else "grpo"))
        loop = make_loop(complete_token(method.replace(experience=experience, problems=3)), TASK)
        before = [p.detach().clone() for p in loop.policy.parameters()]
        metrics.append(loop.step().metrics)
        weights.append([p.detach().clone() for p in loop.policy.parameters()])
    assert metrics[0]["reward"] == metrics[1]["reward"] and metrics[0]["gradient_norm"] > 0
    assert all(torch.equal(p, q) for p, q in zip(*weights, strict=True))
    assert not all(torch.equal(p, q) for p, q in zip(before, weights[1], strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("search", [BEAM, TREE])
def test_every_group_has_the_answer_of_the_search_once_and_what_the_guide_said(search: Search) -> None:
    found = collected(GroupsBySearch(search=search, size=5))
    groups = {e.group: [o for o in found if o.group == e.group] for e in found}
    assert len(groups) == len(TASK.problems("train")) and max(map(len, groups.values())) == 5
    for rows in groups.values():
        assert sum(e.info["chosen"] for e in rows) == 1
        best = next(e for e in rows if e.info["chosen"])
        own = [e for e in rows if e.info["worth"][-1] is not None]
        assert best.info["worth"][-1] == max(e.info["worth"][-1] for e in own)
    for e in found:
        said = e.segments[-1]
        assert sum(said.info["pieces"]) == len(said.tokens) and len(e.info["worth"]) == len(said.info["pieces"])
        assert max(said.info["step"]) == len(said.info["pieces"]) - 1 and e.info["visits"] >= 1
    if search is TREE:
        assert max(e.info["visits"] for e in found) > 1


@pytest.mark.slow
@pytest.mark.parametrize("search", [BEAM, TREE])
def test_a_step_learns_tokens_as_they_were_sampled_and_clones_what_is_right_and_chosen(search: Search) -> None:
    method = o1_roadmap.replace(experience=GroupsBySearch(search=search, size=5), problems=4)
    loop = make_loop(complete_token(method), TASK)
    metrics = loop.step().metrics  # its invariants: sampled tokens, and log-probabilities that agree
    assert 8 < metrics["rows"] <= 20 and metrics["sampled_tokens"] > 20 and metrics["gradient_norm"] > 0


def test_what_cannot_be_searched_is_refused() -> None:
    with pytest.raises(ConfigError, match="several turns"):
        check(o1_roadmap, attr_20q)
    for slots in ({"filters": (SettledAnswers(),)}, {"advantages": VisitShares()}, {"rewards": (GuidePotential(),)}):
        with pytest.raises(ConfigError, match="nothing searches"):
            check(cast(TokenMethod, get_method("reinforce")).replace(**slots), compose)


def test_best_of_n_is_right_where_one_is_and_stays_near_the_policy() -> None:
    """Identity 2: P = 1 - (1 - p)^N, and KL(best of N || pi) <= ln N - (N - 1) / N, over all samples of a table."""
    chances, right, size = [0.4, 0.3, 0.2, 0.1], {1, 3}, 3
    nodes = [Node(0, Draw(i), i, tokens=[i], value=v) for i, v in enumerate((0.1, 0.9, 0.3, 0.7))]

    def table(search: BestOf) -> list[float]:
        found = [0.0] * 4
        for drawn in itertools.product(range(4), repeat=size):
            trees: Any = Rows(roots=[None], complete=lambda roots, n, drawn=drawn: [[nodes[i] for i in drawn]])
            found[search.find(trees)[0].tokens[0]] += math.prod(chances[i] for i in drawn)
        return found

    best = table(BestOf(samples=size))
    p = sum(chances[i] for i in right)
    assert sum(best) == pytest.approx(1) and best[0] == pytest.approx(0.4**3)
    assert sum(best[i] for i in right) == pytest.approx(1 - (1 - p) ** size)
    kl = sum(b * math.log(b / c) for b, c in zip(best, chances))
    assert 0 < kl <= math.log(size) - (size - 1) / size


# What is learned


def policy_table(logits: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(logits, -1)


def test_a_potential_moves_reward_and_neither_the_sum_nor_the_expected_gradient() -> None:
    """Identity 1: of all answers of two steps of three ways, with a guide that says anything of the first step."""
    logits = torch.tensor([0.3, -0.2, 0.6], dtype=F64, requires_grad=True)
    after = torch.tensor([[0.1, 0.5, -0.4], [1.0, 0.0, 0.2], [-0.3, 0.4, 0.0]], dtype=F64, requires_grad=True)
    answers = list(itertools.product(range(3), repeat=2))
    outcome = torch.tensor([float((a * 2 + b) % 3 == 1) for a, b in answers], dtype=F64)
    worth = (0.2, 0.9, None)
    batch: Any = Rows(
        step=torch.tensor([[0, 1]] * 9), rewards=torch.stack([torch.zeros(9, dtype=F64), outcome], 1),
        episodes=[Rows(info={"worth": [worth[a], 0.8]}) for a, _ in answers],
    )  # fmt: skip
    shaping = GuidePotential(weight=1.5).shape(batch)
    assert shaping[0].tolist() == pytest.approx([0.3, -0.3]) and shaping[8].tolist() == [0.0, 0.0]
    assert shaping.sum(1).abs().max() < 1e-15 and shaping.abs().max() > 1
    logp = torch.stack([torch.stack([policy_table(logits)[a], policy_table(after[a])[b]]) for a, b in answers])

    def gradient(rewards: torch.Tensor) -> torch.Tensor:
        togo = rewards.flip(1).cumsum(1).flip(1)
        objective = (logp.sum(1).exp().detach()[:, None] * togo * logp).sum()
        return torch.cat([g.flatten() for g in torch.autograd.grad(objective, [logits, after], retain_graph=True)])

    plain, moved = gradient(batch.rewards), gradient(batch.rewards + shaping)
    torch.testing.assert_close(moved, plain, atol=1e-12, rtol=0)
    exact = torch.autograd.grad((logp.sum(1).exp() * outcome).sum(), [logits, after])
    torch.testing.assert_close(plain, torch.cat([g.flatten() for g in exact]), atol=1e-12, rtol=0)


@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_a_potential_leaves_the_discounted_sum_of_every_answer(gamma: float) -> None:
    """Identity 1, of all answers of three steps of 1, 2 and 3 tokens and all that a guide may say of them."""
    worths = list(itertools.product((0.2, -0.7, None), repeat=3))
    outcome = torch.tensor([0.0, 0.5, 0.0, 0.0, 0.0, 0.0, 2.0], dtype=F64)
    batch: Any = Rows(
        step=torch.tensor([[-1, 0, 1, 1, 2, 2, 2]] * len(worths)), rewards=outcome.repeat(len(worths), 1),
        episodes=[Rows(info={"worth": list(worth)}) for worth in worths],
    )  # fmt: skip
    shaping = GuidePotential(weight=1.5, gamma=gamma).shape(batch)
    discounts = gamma ** torch.arange(-1, 6, dtype=F64)  # the first of all is a token of the prompt
    assert ((shaping * discounts).sum(1)).abs().max() < 1e-14 and not shaping[:, 0].any()
    for row, worth in enumerate(worths):
        first = worth[0] or 0.0
        second = first if worth[1] is None else worth[1]
        phi = [0.0, first, first, second, second, second, 0.0]  # before each of the six tokens, and at the end
        wanted = [1.5 * (gamma * after - before) for before, after in itertools.pairwise(phi)]
        assert shaping[row, 1:].tolist() == pytest.approx(wanted, abs=1e-14)
    assert (shaping[:, [2, 4, 5]].abs().max() > 0) == (gamma < 1), "inside of a step"


def test_a_potential_of_another_discount_than_the_advantages_is_refused() -> None:
    method = cast(TokenMethod, get_method("reinforce")).replace(
        experience=GroupsBySearch(), rewards=(*o1_roadmap.rewards, GuidePotential()), advantages=RewardToGo(gamma=0.9)
    )
    with pytest.raises(ConfigError, match=r"discount of 1, and the advantages have one of 0.9.*set rewards.guide-pot"):
        check(method, compose)
    check(set_values(method, {"rewards.guide-potential.gamma": 0.9}), compose)
    check(method.replace(advantages=RewardToGo()), compose)


def test_cloning_visits_of_mere_samples_teaches_nothing_and_those_of_a_tree_do() -> None:
    logits = torch.tensor([0.5, 0.1, -0.7], dtype=F64, requires_grad=True)
    logp, size = policy_table(logits), 3
    total = {False: torch.zeros(3, dtype=F64), True: torch.zeros(3, dtype=F64)}
    for drawn in itertools.product(range(3), repeat=size):
        chance = logp[list(drawn)].sum().exp().detach()
        for searched in total:
            visits = [5 if searched and i == 2 else 1 for i in drawn]
            batch: Any = Rows(group=torch.zeros(size), scores=torch.zeros(size, dtype=F64),
                              behaviour_logp=torch.zeros(size, 1, dtype=F64))  # fmt: skip
            batch.episodes = [Rows(info={"visits": n}) for n in visits]
            shares = VisitShares()(cast(TokenBatch, batch))[:, 0]
            assert float(shares.sum()) == pytest.approx(1)
            (up,) = torch.autograd.grad((shares * logp[list(drawn)]).sum(), logits, retain_graph=True)
            total[searched] += chance * up
    assert total[False].abs().max() < 1e-12 and total[True][2] > 0.1


# The study and the claim


@pytest.mark.slow
def test_recipes_of_the_study_are_other_searches_guides_and_learners() -> None:
    from etude.runs.studies import load_study
    from etude.runs.training import compose_method

    study = load_study("o1-roadmap")
    (bed,) = (study.bed(name) for name in study.beds)
    made = {}
    for arm in study.arms():
        values = {k: v for k, v in {**bed.set, **arm.changes}.items() if not k.startswith("task.")}
        method = cast(TokenMethod, compose_method(arm.method, assignments(values)))
        check(method, bed.goal)
        made[arm.label] = method
    searches = [m.experience.search for m in made.values() if isinstance(m.experience, GroupsBySearch)]
    assert {type(s).__name__ for s in searches} == {"BestOf", "MajorityVote", "Beam", "TreeSearch"}
    guides = {type(guide) for s in searches if (guide := getattr(s, "guide", None)) is not None}
    assert guides == {Verifier, MeanLikelihood, Lookahead} and len(searches) == len(made) - 2
    assert len({type(m.objective) for m in made.values()}) == 4
    assert isinstance(made["visits, tree, looking ahead"].advantages, VisitShares)
    assert {name: len(levels) for name, levels in study.factors.items()} == {"learner": 3, "search": 7}
    assert isinstance(cast(TokenMethod, get_method("reinforce")).advantages, RewardToGo)


def test_the_claim_searches_with_a_beam_that_looks_ahead() -> None:
    claim = o1_roadmap.claim
    assert claim is not None
    method = cast(TokenMethod, set_values(o1_roadmap, claim.changes))
    assert method.experience == GroupsBySearch(
        search=Beam(width=2, branch=4, separator=">", guide=Lookahead(samples=2)), size=8
    )
