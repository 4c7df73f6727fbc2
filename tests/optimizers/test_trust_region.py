"""Natural gradients and trust regions: products, solves and steps against dense algebra, member by member."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from control_toys import MDP, EveryPair, control_loop, solved
from etude.core.errors import ConfigError, NonFiniteError
from etude.core.population import PerMember
from etude.core.registry import get_method
from etude.learners.state import StateValue
from etude.optimizers.population import MAX_FAILURES
from etude.optimizers.trust_region import (
    NaturalGradient,
    PopulationNaturalGradient,
    TrustRegion,
    conjugate_gradients,
    dot,
    flat_gradient,
    hessian_product,
)


def random_pairs(members: int, seed: int = 0, scale: float = 1.0, states: int = 4, actions: int = 3) -> EveryPair:
    g = torch.Generator().manual_seed(seed)
    logits, advantages, visits = (
        torch.randn(members, states, actions, generator=g, dtype=torch.float64) for _ in range(3)
    )
    return EveryPair(scale * logits, visits[..., :1].softmax(1) * (scale * logits).softmax(-1), advantages)


def ascent(pairs: EveryPair) -> Tensor:
    return -flat_gradient(pairs.loss(pairs.evaluate())[0], [pairs.policy.weight])


def fisher_product(pairs: EveryPair):
    kl = pairs.evaluate().kl
    assert kl is not None
    return hessian_product(pairs.mean(kl), [pairs.policy.weight])


def test_the_product_is_that_of_the_fisher_matrix() -> None:
    pairs = random_pairs(3)
    v = torch.randn(3, 12, dtype=torch.float64)
    expected = torch.einsum("pij,pj->pi", pairs.fisher(), v)
    torch.testing.assert_close(fisher_product(pairs)(v), expected, atol=1e-14, rtol=1e-12)


def test_conjugate_gradients_solve_what_a_dense_solver_solves() -> None:
    pairs = random_pairs(3)
    g, product = ascent(pairs), fisher_product(pairs)
    found = conjugate_gradients(lambda v: product(v) + 0.1 * v, g, iterations=30, tolerance=1e-28)
    dense = pairs.fisher() + 0.1 * torch.eye(12, dtype=torch.float64)
    torch.testing.assert_close(found, torch.linalg.solve(dense, g), atol=1e-12, rtol=1e-10)


def test_a_member_that_is_done_stands_still_while_the_others_go_on() -> None:
    g = torch.Generator().manual_seed(0)
    roots = torch.randn(3, 6, 6, generator=g, dtype=torch.float64)
    matrices = roots @ roots.mT + torch.eye(6, dtype=torch.float64)
    matrices[1] = torch.eye(6)  # solved after one iteration
    target = torch.randn(3, 6, generator=g, dtype=torch.float64)
    target[2] = 0  # solved at once
    found = conjugate_gradients(lambda v: torch.einsum("pij,pj->pi", matrices, v), target, 20, 1e-24)
    torch.testing.assert_close(found, torch.linalg.solve(matrices, target), atol=1e-10, rtol=0)
    assert not found[2].any()
    rough = conjugate_gradients(lambda v: torch.einsum("pij,pj->pi", matrices, v), target, 2, 1e-24)
    assert torch.equal(rough[1], found[1])
    assert not torch.equal(rough[0], found[0])


def test_a_direction_without_curvature_ends_the_solve() -> None:
    target = torch.ones(2, 3, dtype=torch.float64)
    scale = torch.tensor([[-1.0], [2.0]], dtype=torch.float64)
    found = conjugate_gradients(lambda v: scale * v, target, 5, 0.0)
    assert found.tolist() == [[0.0] * 3, [0.5] * 3]


@pytest.mark.parametrize("delta", [1e-4, 0.01])
def test_the_quadratic_kl_of_a_natural_step_is_delta(delta: float) -> None:
    pairs = random_pairs(3)
    before, fisher = pairs.parameters.values.clone(), pairs.fisher()
    metrics = NaturalGradient(delta=delta).population(pairs.parameters).step(pairs, 1.0)
    step = (pairs.parameters.values - before)[:, :12]
    quadratic = 0.5 * torch.einsum("pi,pij,pj->p", step, fisher, step)
    torch.testing.assert_close(quadratic, torch.full((3,), delta, dtype=torch.float64), atol=0, rtol=1e-9)
    kl = pairs.mean(pairs.evaluate().kl).detach()
    torch.testing.assert_close(metrics["kl"], kl)
    torch.testing.assert_close(kl, quadratic, atol=0, rtol=20 * math.sqrt(delta))
    assert torch.equal(pairs.parameters.values[:, 12:], before[:, 12:])  # the critic's weights


def test_the_step_is_the_damped_natural_gradient() -> None:
    pairs = random_pairs(2)
    before, fisher, g = pairs.parameters.values.clone(), pairs.fisher(), ascent(pairs)
    NaturalGradient(iterations=30, tolerance=1e-28).population(pairs.parameters).step(pairs, 1.0)
    x = torch.linalg.solve(fisher + 0.1 * torch.eye(12, dtype=torch.float64), g)
    size = (2 * 0.01 / torch.einsum("pi,pij,pj->p", x, fisher, x)).sqrt()
    expected = before[:, :12] + size[:, None] * x
    torch.testing.assert_close(pairs.parameters.values[:, :12], expected, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("delta", [0.01, 0.5, 3.0])
@pytest.mark.parametrize("seed", range(5))
def test_an_accepted_step_stays_in_the_region_and_loses_nothing(delta: float, seed: int) -> None:
    pairs = random_pairs(4, seed)
    before, loss = pairs.parameters.values.clone(), pairs.loss(pairs.evaluate())[0].detach()
    metrics = TrustRegion(delta=delta).population(pairs.parameters).step(pairs, 1.0)
    after, kl = pairs.loss(pairs.evaluate())[0].detach(), pairs.mean(pairs.evaluate().kl).detach()
    taken = metrics["accepted"].bool()
    assert bool((kl <= delta).all())
    assert bool((after <= loss).all())
    assert torch.equal(metrics["kl"], torch.where(taken, kl, torch.zeros_like(kl)))
    assert torch.equal(pairs.parameters.values[~taken], before[~taken])
    assert bool(((metrics["step_size"] > 0) == taken).all())


def test_the_line_search_takes_the_first_power_of_the_factor_that_keeps_the_promise() -> None:
    natural, searched = random_pairs(4), random_pairs(4)
    before, loss = natural.parameters.values.clone(), natural.loss(natural.evaluate())[0].detach()
    full = NaturalGradient(delta=1.0).population(natural.parameters).step(natural, 1.0)["step_size"]
    step = natural.parameters.values - before
    found = TrustRegion(delta=1.0).population(searched.parameters).step(searched, 1.0)["step_size"]
    powers = [2, 0, 0, 1]  # every member its own
    torch.testing.assert_close(found, full * 0.8 ** torch.tensor(powers, dtype=torch.float64), atol=0, rtol=1e-12)
    for j in range(3):
        natural.parameters.values.copy_(before + 0.8**j * step)
        kl, after = natural.mean(natural.evaluate().kl), natural.loss(natural.evaluate())[0]
        good = ((kl <= 1.0) & (after <= loss)).tolist()
        assert all(good[m] == (j == power) for m, power in enumerate(powers) if j <= power)


def test_without_a_good_step_the_weights_stay() -> None:
    pairs = random_pairs(2)
    region = TrustRegion(delta=2.0, tries=1).population(pairs.parameters)
    first = pairs.loss

    def worse(policy):
        loss, found = first(policy)
        moved = (policy.logp.detach() - pairs.batch.behaviour_logp).abs().amax(1) > 1e-9
        return loss + moved * torch.tensor([100.0, 0.0]), found

    pairs.loss, before = worse, pairs.parameters.values.clone()
    metrics = region.step(pairs, 1.0)
    assert metrics["accepted"][0] == metrics["kl"][0] == metrics["step_size"][0] == metrics["skipped_steps"][0] == 0
    assert torch.equal(pairs.parameters.values[0], before[0])


def test_no_gradient_no_step() -> None:
    pairs = random_pairs(3)
    pairs.batch.advantages[1] = 0
    before = pairs.parameters.values.clone()
    metrics = TrustRegion().population(pairs.parameters).step(pairs, 1.0)
    assert metrics["accepted"].tolist() == [1, 0, 1]
    assert metrics["skipped_steps"].tolist() == [0, 0, 0]
    assert torch.equal(pairs.parameters.values[1], before[1])


@pytest.mark.parametrize("part", [NaturalGradient(), TrustRegion()])
def test_a_member_without_finite_numbers_keeps_its_weights_and_stops_the_run_at_the_third_time(part) -> None:
    saved = part.population(random_pairs(3).parameters).tensors()
    for number in range(1, MAX_FAILURES):
        pairs, stepper = failing(part, saved)
        before = pairs.parameters.values.clone()
        metrics = stepper.step(pairs, 1.0)
        assert metrics["skipped_steps"].tolist() == [0, 1, 0]
        assert torch.equal(pairs.parameters.values[1], before[1])
        assert not torch.equal(pairs.parameters.values[0], before[0])
        saved = stepper.tensors()
        assert saved["failures"].tolist() == [0, number, 0]
    pairs, stepper = failing(part, saved)
    with pytest.raises(NonFiniteError, match="member 1 was not finite in 3 optimizer steps in a row") as caught:
        stepper.step(pairs, 1.0)
    assert caught.value.batch["advantages"].isnan().any()
    pairs, stepper = failing(part, saved)
    pairs.batch.advantages[1, 0] = 0.0
    stepper.step(pairs, 1.0)
    assert stepper.tensors()["failures"].tolist() == [0, 0, 0]


def failing(part: NaturalGradient, saved: dict[str, Tensor]) -> tuple[EveryPair, PopulationNaturalGradient]:
    """A resumed optimizer and a minibatch with which member 1 cannot go on."""
    pairs = random_pairs(3)
    pairs.batch.advantages[1, 0] = math.nan
    stepper = part.population(pairs.parameters)
    stepper.load({k: v.clone() for k, v in saved.items()})
    return pairs, stepper


@pytest.mark.parametrize("part", [NaturalGradient(), TrustRegion()])
def test_a_step_to_where_nothing_is_finite_is_taken_back(part: NaturalGradient) -> None:
    pairs = random_pairs(2)
    first, before = pairs.loss, pairs.parameters.values.clone()

    def breaks(policy):
        loss, found = first(policy)
        moved = (policy.logp.detach() - pairs.batch.behaviour_logp).abs().amax(1) > 1e-9
        return torch.where(moved & torch.tensor([True, False]), math.nan, loss), found

    pairs.loss = breaks
    metrics = part.population(pairs.parameters).step(pairs, 1.0)
    assert torch.equal(pairs.parameters.values[0], before[0])
    assert not torch.equal(pairs.parameters.values[1], before[1])
    assert metrics["accepted"].tolist() == [0, 1]
    assert metrics["skipped_steps"].tolist() == ([0, 0] if isinstance(part, TrustRegion) else [1, 0])
    assert metrics["kl"].isfinite().all()


def test_one_value_per_member() -> None:
    both = random_pairs(2)
    part = TrustRegion()
    object.__setattr__(part, "delta", PerMember([1e-4, 0.02]))
    object.__setattr__(part, "damping", PerMember([0.1, 0.3]))
    part.population(both.parameters).step(both, 1.0)
    for member, (delta, damping) in enumerate([(1e-4, 0.1), (0.02, 0.3)]):
        same = random_pairs(2)
        TrustRegion(delta=delta, damping=damping).population(same.parameters).step(same, 1.0)
        assert torch.equal(same.parameters.values[member], both.parameters.values[member])


def test_what_cannot_work_is_refused() -> None:
    trpo = get_method("trpo")
    with pytest.raises(ConfigError, match="has no learning rate"):
        TrustRegion(lr=0.1)
    with pytest.raises(ConfigError, match="set epochs and minibatches to 1"):
        trpo.replace(minibatches=2).check()
    with pytest.raises(ConfigError, match="use a critic that is fitted afterwards"):
        trpo.replace(critic=StateValue()).check()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["npg", "trpo", "gae"])
def test_three_members_are_three_runs_bit_for_bit(name: str) -> None:
    """Also with an odd number of parameters, where vectors end in the middle of a register."""
    method = get_method(name)
    method = method.replace(experience=method.experience.replace(environments=3, steps=21))
    together = control_loop(method, [5, 6, 7])
    reports = [together.step() for _ in range(3)]
    for member, seed in enumerate([5, 6, 7]):
        alone = control_loop(method, [seed])
        single = [alone.step() for _ in range(3)]
        assert torch.equal(alone.parameters.values[0], together.parameters.values[member])
        for one, three in zip(single, reports):
            assert {k: v[0] for k, v in one.members.items()} == {
                k: v[member] for k, v in three.members.items() if k in one.members
            }


def test_natural_gradient_of_a_solved_process_is_its_advantage() -> None:
    """F^+ grad J = A / (1 - gamma) up to a constant per state (Kakade 2001): pi_new ~ pi exp(step A / (1 - gamma))."""
    mdp, logits = MDP.random(), torch.randn(2, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    pairs, parameter = solved(mdp, logits), logits[0].clone().requires_grad_()
    pi = logits[0].softmax(-1)
    exact = torch.autograd.grad(mdp.objective(parameter.softmax(-1)), parameter)[0]
    torch.testing.assert_close(ascent(pairs)[0], (1 - mdp.gamma) * exact.flatten(), atol=1e-14, rtol=1e-10)
    x = conjugate_gradients(fisher_product(pairs), exact.flatten().expand(2, -1), 6, 1e-26)[0].view(3, 2)
    centred = x - (pi * x).sum(1, keepdim=True)
    expected = mdp.advantages(pi) / (1 - mdp.gamma)
    torch.testing.assert_close(centred, expected, atol=1e-10, rtol=0)
    moved = (logits[0] + 0.3 * x).softmax(-1)
    tilted = pi * (0.3 * expected).exp()
    torch.testing.assert_close(moved, tilted / tilted.sum(1, keepdim=True), atol=1e-10, rtol=0)


def test_the_natural_step_does_not_depend_on_the_parametrisation_and_the_plain_one_does() -> None:
    """theta = M omega changes nothing to first order; dot products are per member, so both fit into one population."""
    g = torch.Generator().manual_seed(2)
    mdp, logits = MDP.random(), torch.randn(1, 3, 2, generator=g, dtype=torch.float64).expand(2, 3, 2).contiguous()
    eye = torch.eye(6, dtype=torch.float64)
    mixing = torch.stack([eye, eye + 0.7 * torch.randn(6, 6, generator=g, dtype=torch.float64)])
    pairs = solved(mdp, logits, mixing)
    plain = mixing @ ascent(pairs)[..., None]
    first, second = (
        pairs.old.exp() * (x - (pairs.old.exp() * x).sum(-1, keepdim=True)) for x in plain.view(2, 1, 3, 2)
    )
    assert torch.cosine_similarity(first[0].flatten(), second[1].flatten(), dim=0) < 0.98
    part = NaturalGradient(delta=1e-10, damping=0.0, iterations=12, tolerance=1e-26)
    part.population(pairs.parameters).step(pairs, 1.0)
    change = pairs.evaluate().logp.detach() - pairs.old.flatten(1)
    torch.testing.assert_close(change[0], change[1], atol=0, rtol=1e-3)
    assert float(dot(change, change).sqrt().min()) > 1e-6
