"""What REBEL and CoPG prove, by enumeration: the shipped compositions on every group that could have been sampled."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from etude.core.complete import complete_token
from etude.core.method import Method
from etude.core.registry import get_method
from etude.evaluation.exact import expected_gradient, gradient
from etude.loops.bandit import Bandit
from etude.loops.credit import loss
from etude.objectives.links import SquaredToReward
from etude.objectives.pairs import PairLoss
from etude.policies.tabular import SoftmaxTree

RESPONSES = 4
REWARDS = torch.tensor([[0.9, -0.3, 0.4, 1.7]], dtype=torch.float64)


def tree(seed: int, length: int = 1) -> SoftmaxTree:
    return SoftmaxTree(1, 4 if length == 1 else 2, length, spread=1.0, seed=seed)


def bandit(seed: int = 0, length: int = 1) -> Bandit:
    policy = tree(seed, length)
    return Bandit(policy, REWARDS[:, : len(policy.tokens)])


def plain(method: Method) -> Method:
    """Without what is paid besides the table."""
    return method.replace(rewards=method.rewards[:1])


def sampled(method: Method) -> Method:
    """The method on groups of the behaviour policy in place of data."""
    return method.replace(experience=get_method("rebel").experience)


def set_to(policy: SoftmaxTree, logp: Tensor) -> None:
    """Make the policy over single tokens this one."""
    policy.logits[0].data.copy_(logp.log_softmax(-1).view_as(policy.logits[0]))


def logp_of(policy: SoftmaxTree) -> Tensor:
    return policy.logp().detach()[0, 0]


def pairs_loss(method: Method, given: Bandit, behaviour: SoftmaxTree, reference: SoftmaxTree, scores: Tensor) -> Tensor:
    """The loss [Y, Y] of every ordered pair under the policy as it is now."""
    whole, table = complete_token(method), given.policy.table()
    found = []
    for pair in product(range(RESPONSES), repeat=2):
        response, asked = torch.tensor(pair), torch.zeros(2, dtype=torch.long)
        said, held = (q.rows(0, asked, response, q.table().detach()) for q in (behaviour, reference))
        batch = given.batch(asked, response, said, held.logp).replace(scores=scores[response])
        batch.advantages = torch.zeros_like(batch.rewards)
        found.append(loss(whole, batch, given.policy.rows(0, asked, response, table), given.policy.length))
    return torch.stack(found).view(RESPONSES, RESPONSES)


# REBEL


@pytest.mark.parametrize("eta", [0.5, 2.0])
def test_rebels_loss_is_0_for_every_pair_after_a_step_of_mirror_descent(eta: float) -> None:
    """pi_{t+1} ~ pi_t exp(eta r): no distribution of pairs has a say in it."""
    method, given, old = get_method("rebel"), bandit(), tree(1)
    method = method.replace(objective=method.objective.replace(link=SquaredToReward(eta=eta)))
    set_to(given.policy, logp_of(old) + eta * REWARDS[0])
    assert float(pairs_loss(method, given, old, old, REWARDS[0]).detach().max()) < 1e-24
    set_to(given.policy, logp_of(old) + 1.1 * eta * REWARDS[0])
    assert float(pairs_loss(method, given, old, old, REWARDS[0]).detach().max()) > 1e-4


def test_what_rebel_regresses_to_holds_the_distance_from_the_reference() -> None:
    """r - 0.05 log(pi_t / ref), so that the fixed point of rounds is ref exp(r / 0.05), not the best response."""
    method, given, old, reference = get_method("rebel"), bandit(), tree(1), tree(2)
    away = logp_of(old) - logp_of(reference)
    set_to(given.policy, logp_of(old) + REWARDS[0] - 0.05 * away)
    rows = expected_gradient(method, given, 2, behaviour=old, reference=reference)
    assert float(rows.abs().max()) < 1e-12
    rows = expected_gradient(plain(method), given, 2, behaviour=old, reference=reference)
    assert float(rows.abs().max()) > 1e-4


@pytest.mark.parametrize("length", [1, 2])
@pytest.mark.parametrize("eta", [0.5, 2.0])
def test_rebels_first_gradient_is_that_of_rloo(eta: float, length: int) -> None:
    """4 eta times RLOO's with two completions (a mean over two rows), which is that of E[r]."""
    rebel, rloo, given = plain(get_method("rebel")), get_method("rloo"), bandit(length=length)
    rebel = rebel.replace(objective=rebel.objective.replace(link=SquaredToReward(eta=eta)))
    found = expected_gradient(rebel, given, 2)
    other = expected_gradient(rloo, given, 2) * length  # rloo's sums over tokens are divided by the limit
    torch.testing.assert_close(found, 4 * eta * other, rtol=1e-11, atol=1e-13)
    exact = gradient((given.policy.probs() * given.rewards).sum(), given.policy)
    torch.testing.assert_close(found, -4 * eta * exact, rtol=1e-11, atol=1e-13)


def test_a_gauss_newton_step_of_rebel_is_a_natural_policy_gradient() -> None:
    """Half the mean squared residual has J'J = 2 F and J' residual = -2 eta grad E[r], F Fisher's information."""
    given, eta = bandit(), 1.0
    probs, rows = given.policy.probs().detach()[0, 0], RESPONSES
    scores = torch.eye(rows, dtype=torch.float64) - probs  # grad log pi(y) by the logits, a row each
    fisher = (probs[:, None] * scores).T @ scores
    jacobian = scores[:, None] - scores[None]
    chance = probs[:, None] * probs[None]
    normal = torch.einsum("ij,ija,ijb->ab", chance, jacobian, jacobian)
    torch.testing.assert_close(normal, 2 * fisher, rtol=1e-12, atol=1e-14)
    slope = expected_gradient(plain(get_method("rebel")), given, 2)[0, 0] / 2
    step = -torch.linalg.pinv(normal) @ slope
    exact = gradient((given.policy.probs() * given.rewards).sum(), given.policy)[0, 0]
    torch.testing.assert_close(step, eta * torch.linalg.pinv(fisher) @ exact, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["rebel", "copg"])
def test_what_is_paid_to_all_responses_of_a_prompt_changes_nothing(name: str) -> None:
    given, old = bandit(), tree(1)
    moved = Bandit(given.policy, given.rewards + 4.0)
    method = sampled(get_method(name))
    one, other = (expected_gradient(method, b, 2, behaviour=old) for b in (given, moved))
    torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-13)


# CoPG


def copg(beta: float) -> Method:
    method: Any = sampled(get_method("copg"))
    return method.replace(objective=method.objective.replace(link=method.objective.link.replace(beta=beta)))


@pytest.mark.parametrize("mu", [1, 2, 3])
def test_copg_has_its_optimum_whatever_distribution_answers_are_from(mu: int) -> None:
    given, reference, beta = bandit(), tree(7), 0.5
    set_to(given.policy, logp_of(reference) + REWARDS[0] / beta)
    found = expected_gradient(copg(beta), given, 2, behaviour=tree(mu), reference=reference)
    assert float(found.abs().max()) < 1e-12
    assert float(pairs_loss(copg(beta), given, tree(mu), reference, REWARDS[0]).detach().max()) < 1e-24
    set_to(given.policy, logp_of(reference) + 0.99 * REWARDS[0] / beta)
    found = expected_gradient(copg(beta), given, 2, behaviour=tree(mu), reference=reference)
    assert float(found.abs().max()) > 1e-4


@pytest.mark.parametrize("size", [2, 3])
def test_on_fresh_samples_copg_ascends_twice_the_regularised_reward(size: int) -> None:
    """E[r] - beta KL(pi || ref); of three answers, as many pairs of each on average."""
    given, reference, beta = bandit(), tree(7), 0.5
    found = expected_gradient(copg(beta), given, size, reference=reference)
    logp = given.policy.logp()
    away = logp - logp_of(reference)
    objective = (logp.exp() * (given.rewards - beta * away)).sum()
    torch.testing.assert_close(found, -2 * gradient(objective, given.policy), rtol=1e-11, atol=1e-13)


def test_off_policy_gradients_with_other_baselines_have_another_fixed_point() -> None:
    """Zero, and the mean reward under mu: the gradient at CoPG's optimum is not 0."""
    given, reference, beta, mu = bandit(), tree(7), 0.5, tree(1).probs().detach()[0, 0]
    set_to(given.policy, logp_of(reference) + REWARDS[0] / beta)
    worth = REWARDS[0] - beta * (logp_of(given.policy) - logp_of(reference))
    assert float(worth.max() - worth.min()) < 1e-12
    for baseline in (0.0, float((mu * REWARDS[0]).sum())):
        value = (mu * (worth - baseline) * given.policy.logp()[0, 0]).sum()
        assert float(gradient(value, given.policy).abs().max()) > 0.01


def test_two_answers_that_are_the_same_teach_nothing() -> None:
    given, old = bandit(), tree(1)
    for name in ("rebel", "copg"):
        diagonal = pairs_loss(sampled(get_method(name)), given, old, old, REWARDS[0]).diagonal()
        assert diagonal.tolist() == [0.0] * RESPONSES


def test_rebel_is_a_pair_loss_with_all_pairs_of_the_behaviour_policy() -> None:
    objective = get_method("rebel").objective
    assert isinstance(objective, PairLoss)
    assert [p.name for p in objective.of.denominators] == ["behaviour-policy"]
    assert objective.choice.name == "all-pairs"
