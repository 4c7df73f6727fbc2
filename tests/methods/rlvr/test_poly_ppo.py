"""Poly-PPO: sets of continuations, their scores and shared advantages, and the gradient that these estimate."""

from __future__ import annotations

from itertools import combinations, product
from math import comb

import pytest
import torch
from torch import Tensor

from etude.advantages.returns import GAE, standardized
from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.episodes import Episode
from etude.core.errors import ConfigError
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.experience.groups import Groups
from etude.methods.rlvr.poly_ppo import (
    OldPolicyKL,
    Polychromic,
    chosen_sets,
    poly_ppo,
    polychromic,
    set_advantages,
)
from etude.methods.rlvr.poly_ppo.vine import Vine
from etude.policies.language import LanguagePolicy
from etude.tasks.agents.attr_20q import attr_20q
from etude.tasks.language.triangles import triangles
from language_toys import Toy, draws, make_loop, random_batch, random_policy


def all_sets(number: int, size: int) -> Tensor:
    real = torch.ones(1, number, dtype=torch.bool)
    return chosen_sets(real, real.long(), comb(number, size), size)


def diverse(returns: list[float], kinds: list[int]) -> float:
    """f by hand."""
    return sum(returns) / len(returns) * len(set(kinds)) / len(kinds)


def bandit() -> tuple[Tensor, Tensor, Tensor]:
    """Logits, returns and signatures of three actions, two of which look the same."""
    theta = torch.tensor([0.3, -0.4, 0.9], dtype=torch.float64, requires_grad=True)
    return theta, torch.tensor([1.0, 0.5, 0.2], dtype=torch.float64), torch.tensor([0, 1, 1])


def objective(probs: Tensor, returns: Tensor, kinds: Tensor, size: int) -> Tensor:
    """E[f] over sets of independent actions."""
    terms = []
    for chosen in product(range(len(probs)), repeat=size):
        f = diverse([float(returns[a]) for a in chosen], [int(kinds[a]) for a in chosen])
        terms.append(probs[list(chosen)].prod() * f)
    return torch.stack(terms).sum()


def test_scores_of_sets_by_hand() -> None:
    returns = torch.tensor([[1.0, 0.0, 1.0, 1.0]], dtype=torch.float64)
    kinds = torch.tensor([[7, 3, 7, 1]])
    sets = all_sets(4, 3)
    expected = [diverse([float(returns[0, i]) for i in s], [int(kinds[0, i]) for i in s])
                for s in combinations(range(4), 3)]  # fmt: skip
    found = polychromic(returns[:, None].expand(sets.shape), kinds, sets)
    assert found.tolist()[0] == pytest.approx(expected, abs=1e-12)
    assert expected[0] == pytest.approx(2 / 3 * 2 / 3)  # {0, 1, 2}: two of three pay, two of three are distinct


@pytest.mark.parametrize("size", [1, 2, 4])
def test_nothing_paid_scores_nothing(size: int) -> None:
    sets = all_sets(5, size)
    assert not polychromic(torch.zeros(sets.shape), torch.arange(5)[None], sets).any()
    empty = torch.zeros_like(sets)  # nobody distinct, because nobody is there: d = 0
    assert not polychromic(torch.ones(sets.shape), torch.arange(5)[None], empty).any()


def test_the_set_policy_gradient_with_any_constant_baseline() -> None:
    """E[(f - b)(s_a + s_c)] = grad E[f], by enumeration against finite differences."""
    theta, returns, kinds = bandit()
    probs = theta.softmax(0).detach()
    score = torch.eye(3, dtype=torch.float64) - probs  # row a: grad log pi(a)
    for b in (0.0, 0.37):
        total = torch.zeros(3, dtype=torch.float64)
        for a, c in product(range(3), repeat=2):
            sets = all_sets(2, 2)
            f = polychromic(returns[[a, c]].view(1, 1, 2), kinds[[a, c]][None], sets)[0, 0]
            total += probs[a] * probs[c] * (f - b) * (score[a] + score[c])
        step = 1e-6
        for k in range(3):
            ends = []
            for sign in (1, -1):
                moved = theta.detach().clone()
                moved[k] += sign * step
                ends.append(objective(moved.softmax(0), returns, kinds, 2))
            assert float(total[k]) == pytest.approx(float((ends[0] - ends[1]) / (2 * step)), abs=1e-9)


@pytest.mark.parametrize(("number", "size"), [(3, 2), (4, 2), (4, 3)])
def test_all_sets_estimate_the_gradient_times_a_known_factor(number: int, size: int) -> None:
    """E[sum_i A_i s_i] = (N - n)/n grad E[f] when A_i is the mean over all sets with i of f less their mean."""
    theta, returns, kinds = bandit()
    (exact,) = torch.autograd.grad(objective(theta.softmax(0), returns, kinds, size), theta)
    probs, sets = theta.softmax(0).detach(), all_sets(number, size)
    score, total = torch.eye(3, dtype=torch.float64) - probs, torch.zeros(3, dtype=torch.float64)
    for chosen in product(range(3), repeat=number):
        picked = list(chosen)
        f = polychromic(returns[picked].expand(sets.shape), kinds[picked][None], sets)
        advantages, inside = set_advantages(f, sets)
        assert inside.all()
        total += probs[picked].prod() * (advantages[0, :, None] * score[picked]).sum(0)
    assert torch.allclose(total, (number - size) / size * exact, atol=1e-12)


def test_sets_of_one_are_returns_minus_their_mean() -> None:
    returns = torch.tensor([[0.2, 1.0, 0.7, 0.0, 0.4]], dtype=torch.float64)
    sets = all_sets(5, 1)
    found, _ = set_advantages(polychromic(returns[:, None].expand(sets.shape), torch.zeros(1, 5), sets), sets)
    assert torch.allclose(found, returns - returns.mean(), atol=1e-12)


@pytest.mark.parametrize(("number", "size"), [(4, 2), (6, 3), (8, 4)])
def test_without_diversity_the_advantage_is_the_centred_return_scaled(number: int, size: int) -> None:
    returns = torch.rand(1, number, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    sets = all_sets(number, size)
    scores = (returns[:, None] * sets).sum(-1) / size  # d = 1
    assert torch.allclose(scores, polychromic(returns[:, None].expand(sets.shape), torch.arange(number)[None], sets))
    found, _ = set_advantages(scores, sets)
    factor = (number - size) / (size * (number - 1))
    assert torch.allclose(found, (returns - returns.mean()) * factor, atol=1e-12)


def test_random_sets_have_their_size_and_leave_out_what_was_lost() -> None:
    real = torch.tensor([[True] * 8, [True] * 5 + [False] * 3, [True] * 3 + [False] * 5])
    draw = torch.tensor([d.key for d in draws(24, 3)]).view(3, 8)
    sets = chosen_sets(real, draw, 4, 4)
    assert sets.shape == (3, 4, 8)
    assert sets.sum(-1).tolist() == [[4] * 4, [4] * 4, [0] * 4]  # three are too few for a set
    assert not (sets & ~real[:, None]).any()
    assert torch.equal(sets, chosen_sets(real, draw, 4, 4))
    assert not torch.equal(sets, chosen_sets(real, draw + 1, 4, 4))
    order = torch.tensor([6, 2, 0, 7, 1, 3, 5, 4])
    moved = chosen_sets(real[:, order].flip(0), draw[:, order].flip(0), 4, 4)
    assert torch.equal(moved, sets[:, :, order].flip(0)), "by the continuations' draws, wherever they stand"
    everything = chosen_sets(real, draw, comb(8, 4), 4)
    assert everything.sum((1, 2)).tolist() == [70 * 4, comb(5, 4) * 4, 0]


def vine_batch(scores: list[float], kinds: list[str]) -> TokenBatch:
    """A seed rollout and a vine in one group."""
    batch = random_batch((1 + len(scores),), low=4, high=4)
    for episode, kind in zip(batch.episodes[1:], kinds):
        episode.info |= {"vine": 0, "signature": kind}
    full = torch.tensor([0.5, *scores])
    last = batch.action_mask.shape[1] - 1 - batch.action_mask.flip(1).int().argmax(1)
    rewards = torch.zeros_like(batch.rewards).scatter(1, last[:, None], full[:, None])
    values = torch.rand(rewards.shape, generator=torch.Generator().manual_seed(0))
    return batch.replace(scores=full, rewards=rewards, values=values)


@pytest.mark.parametrize("window", [0, 2])
def test_the_first_tokens_of_continuations_get_the_set_advantage_and_all_others_gae(window: int) -> None:
    scores, kinds = [1.0, 0.0, 1.0, 0.0], ["a", "b", "a", "c"]
    batch = vine_batch(scores, kinds)
    part = Polychromic(sets=6, set_size=2, window=window, standardize=False).bind()
    found, plain = part(batch), GAE(standardize=False)(batch)
    credit = []
    f = {s: diverse([scores[i] for i in s], [ord(kinds[i]) for i in s]) for s in combinations(range(4), 2)}
    for i in range(4):
        mine = [v for s, v in f.items() if i in s]
        credit.append(sum(mine) / 3 - sum(f.values()) / 6)
    assert torch.equal(found[0], plain[0])
    for row in range(1, 5):
        places = batch.action_mask[row].nonzero()[:, 0].tolist()
        for n, t in enumerate(places):
            wanted = credit[row - 1] if n <= window else float(plain[row, t])
            assert float(found[row, t]) == pytest.approx(wanted, abs=1e-6)
    whole = Polychromic(sets=6, set_size=2, window=window).bind()(batch)
    assert torch.allclose(whole, standardized(found, batch.action_mask), atol=1e-6)
    assert torch.equal(part.returns(batch), GAE(standardize=False).returns(batch))  # what the critic learns


def test_sets_change_from_batch_to_batch_and_not_with_the_order_of_rows() -> None:
    batch = vine_batch([1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0], list("abcabcde"))
    first, second = (batch.replace(draw=torch.tensor([d.key for d in draws(9, seed)])) for seed in range(2))
    part = Polychromic(standardize=False).bind()
    found = part(first)
    assert not torch.equal(found, part(second)) and torch.equal(found, part(first))
    order = torch.tensor([0, 5, 3, 8, 1, 2, 7, 6, 4])
    assert torch.allclose(part(first.rows(order)), found[order], atol=1e-6)


def test_the_penalty_is_an_unbiased_estimate_of_the_forward_divergence() -> None:
    old, new = (torch.tensor(x, dtype=torch.float64).log_softmax(0) for x in ([0.1, 1.0, -0.5], [0.4, 0.2, 0.0]))
    batch = random_batch((3,)).replace(behaviour_logp=old[:, None])
    loss = OldPolicyKL(coefficient=0.01)(batch, TokenLogProbs(new[:, None]))[:, 0]
    exact = (old.exp() * (old - new)).sum()
    assert float((old.exp() * loss).sum()) == pytest.approx(0.01 * float(exact), abs=1e-12)


@pytest.fixture(scope="module")
def tiny() -> LanguagePolicy:
    return LanguagePolicy.load("tiny", device="cpu")


def collected(experience: Vine, task: object, policy: LanguagePolicy) -> list[Episode]:
    problems = [task.problems("train")[i] for i in range(2)]  # type: ignore[attr-defined]
    return experience.collect(problems, Context(task, policy, Stream(5), max_tokens=task.max_tokens))  # type: ignore[attr-defined]


def test_continuations_go_on_from_evenly_spaced_tokens() -> None:
    policy, task = random_policy(), Toy(max_tokens=9)
    found = collected(Vine(size=2, states=2, continuations=3, prompt=True), task, policy)
    seeds, vines = found[:4], found[4:]
    assert len(vines) == 4 * 3 * 3
    for k, episode in enumerate(vines):
        state, parent = k // 3, seeds[k // 9]
        said, again = (next(s for s in e.segments if s.role == "assistant") for e in (parent, episode))
        place = [0, len(said.tokens) // 3, 2 * len(said.tokens) // 3][state % 3]
        assert episode.info["vine"] == state and seeds[episode.parent or 0] is parent
        assert again.tokens[:place] == said.tokens[:place]
        assert again.action_mask == [0] * place + [1] * (len(again.tokens) - place)
        assert episode.group == parent.group and episode.info["signature"] == episode.completion.strip()


@pytest.mark.slow
def test_continuations_of_games_go_on_between_turns(tiny: LanguagePolicy) -> None:
    found = collected(Vine(size=1, states=1, continuations=2), attr_20q, tiny)
    seeds, vines = found[:2], found[2:]
    for k, episode in enumerate(vines):
        parent = seeds[k // 2]
        turns = sum(s.role == "assistant" for s in parent.segments)
        shared = 1 + 2 * (turns // 2)  # the opening, and each turn with its answer
        assert [s.tokens for s in episode.segments[:shared]] == [s.tokens for s in parent.segments[:shared]]
        assert episode.seed == parent.seed and episode.fork_turn in (turns // 2, None)
        assert not any(any(s.action_mask) for s in episode.segments[:shared])


@pytest.mark.slow
def test_the_order_of_sides_makes_no_other_triangle(tiny: LanguagePolicy) -> None:
    assert all("signature" in e.info for e in collected(Vine(), triangles, tiny)[4:])


@pytest.mark.slow
def test_the_loop_trains_and_compares_log_probabilities() -> None:
    metrics = make_loop(poly_ppo.replace(problems=2), Toy()).step().metrics
    assert metrics["rows"] == 2 * (2 + 2 * 2 * 8)
    assert metrics["logp_gap"] < 1e-4 and "regularizer/old-policy-kl" in metrics


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(ConfigError, match="above 4"):
        poly_ppo.replace(experience=Vine(continuations=4)).check()
    with pytest.raises(ConfigError, match="use Vine"):
        poly_ppo.replace(experience=Groups()).check()
    with pytest.raises(ConfigError, match="rollout state"):
        Vine(states=0)
    with pytest.raises(ConfigError, match="above lowest"):
        Polychromic(lowest=1.0)
