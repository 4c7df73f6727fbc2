"""CFPI: an update against torch's own layers, and who acts: in training, restored, exported, in every member."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, distributions

from etude.core.edit import set_values
from etude.core.errors import ConfigError
from etude.core.fit import check
from etude.core.population import Member
from etude.core.registry import get_method
from etude.evaluation.acting import TrainedPolicy
from etude.evaluation.control import play
from etude.evaluation.export import export_policy
from etude.evaluation.restored import restore_policies
from etude.experience.stretches import Stretches
from etude.loops.off_policy import OffPolicyLoop
from etude.policies.control.actor import Player
from etude.policies.control.replay import SquashedPolicy
from log_toys import logged_task, pendulum_columns, small_logged
from own_updates import Learner, flat, follow, net, q

GAMMA, UPDATES, CRITICS, WAYS = 0.99, 3, 5, 4
MEMBERS = [Member(3), Member(4)]
torch.set_num_threads(1)


def loop_of(folder: Path, members: list[Member] | None = None, **changes: Any) -> OffPolicyLoop:
    method = set_values(small_logged("cfpi"), {k.replace("__", "."): v for k, v in changes.items()})
    return OffPolicyLoop(method, logged_task(folder), members or MEMBERS, 2, UPDATES)


def own_logp(said: Tensor, actions: Tensor) -> Tensor:
    logits, means, log_stds = said.split([WAYS, WAYS, WAYS], -1)
    normals = distributions.Normal(means, log_stds.clamp(-5, 2).exp())
    mixed = distributions.MixtureSameFamily(distributions.Categorical(logits=logits), normals)
    done = actions[:, 0].clamp(-1 + 1e-6, 1 - 1e-6)
    found: Tensor = mixed.log_prob(torch.atanh(done)) - (1 - done**2).log()
    return found


@pytest.mark.slow
def test_updates_are_those_of_the_paper(tolerance: float, tmp_path: Path) -> None:
    """One member after another; critics stand in the policy's part of a checkpoint, since it acts by them."""
    loop = loop_of(tmp_path)
    stretches, store = Stretches(loop.population, "learn"), loop.collector.store
    seen = store.rows[:, :3].double()
    mean, std = seen.mean(0), seen.std(0, correction=0) + 1e-3
    batches = [loop.method.sampling.draw(store, stretches.at(n)) for n in range(UPDATES)]
    tensors = {n: v.clone() for n, v in loop.policy_tensors().items()}
    nets = [(net(tensors, "policy", k), [net(tensors, "policy.held.critic", CRITICS * k + i) for i in range(CRITICS)])
            for k in (0, 1)]  # fmt: skip
    reported = loop.step().members
    tensors = loop.policy_tensors()
    for k, (policy, critics) in enumerate(nets):
        slow, cloning, valuing = copy.deepcopy(critics), Learner(1e-4, policy), Learner(3e-4, *critics)
        for batch in batches:
            kind, a, r = batch.rewards.dtype, batch.actions[k], batch.rewards[k]
            assert batch.next_observations is not None
            s, then = (((x[k].double() - mean) / std).to(kind) for x in (batch.observations, batch.next_observations))
            cloning.step(-own_logp(policy(s), a).mean())
            following, live = batch.offers["next_actions"][k].nan_to_num(0.0), (~batch.terminated[k]).to(kind)
            total = torch.zeros(())
            for critic, old in zip(critics, slow, strict=True):
                with torch.no_grad():
                    y = r + GAMMA * live * q(old, then, following)
                total = total + ((q(critic, s, a) - y) ** 2).mean()
            valuing.step(total)
            follow(slow, critics)
        loose = max(tolerance, 1e-8) if tolerance < 1e-6 else 10 * tolerance  # of atanh near the bounds
        torch.testing.assert_close(flat(net(tensors, "policy", k)), flat(policy), atol=loose, rtol=loose)
        for i, critic in enumerate(critics):
            found = flat(net(tensors, "policy.held.critic", CRITICS * k + i))
            torch.testing.assert_close(found, flat(critic), atol=tolerance, rtol=tolerance)
        assert reported["critic_loss"][k] == pytest.approx(np.mean(valuing.losses), rel=10 * tolerance)
        assert reported["policy_loss"][k] == pytest.approx(np.mean(cloning.losses), rel=10 * loose)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A loop after two steps, and its checkpoint."""
    folder = tmp_path_factory.mktemp("cfpi")
    loop = loop_of(folder)
    for _ in range(2):
        loop.step()
    (folder / "checkpoint").mkdir()
    loop.save(folder / "checkpoint")
    return loop, folder / "checkpoint"


def observations(rows: int = 12) -> Tensor:
    return torch.from_numpy(pendulum_columns(episodes=1, length=rows)["observations"].astype(np.float32))


@torch.no_grad()
def acted(loop: Any, seen: Tensor) -> Tensor:
    size = loop.population.size
    return Player(loop.actor, size, len(seen)).likeliest(seen.expand(size, -1, -1))


@pytest.mark.slow
def test_the_planner_acts_in_place_of_the_mode_everywhere(trained: Any, tmp_path: Path) -> None:
    loop, checkpoint = trained
    seen = observations()
    actions = acted(loop, seen)
    cloned = loop.actor.distribution.mode(loop.actor(loop.actor.see(seen.expand(2, -1, -1))))
    assert not torch.allclose(actions, cloned, atol=1e-3) and bool((actions.abs() <= 2).all())
    restored = restore_policies(checkpoint, small_logged("cfpi"), loop.task, MEMBERS)
    assert acted(restored, seen).equal(actions)
    assert np.array_equal(*(play(x, loop.task, 2, deterministic=True, longest=20) for x in (loop, restored)))
    for k in (0, 1):
        policy = TrainedPolicy(restored, k)
        one = np.stack([policy(x) for x in seen.numpy()])
        np.testing.assert_allclose(one, actions[k].numpy(), atol=1e-5)
    program = torch.export.load(export_policy(restored, 1, tmp_path / "policy.pt2")).module()
    torch.testing.assert_close(program(seen), actions[1], atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_a_run_that_goes_on_is_one_that_never_stopped(trained: Any, tmp_path: Path) -> None:
    _, checkpoint = trained
    other = loop_of(tmp_path)
    other.load(checkpoint)
    one = loop_of(tmp_path)
    for _ in range(2):
        one.step()
    assert all(v.equal(one.policy_tensors()[n]) for n, v in other.policy_tensors().items())
    again = [x.step().members for x in (other, one)]
    assert again[0] == again[1]


@pytest.mark.slow
def test_members_have_their_own_reach_and_are_their_own_runs(tmp_path: Path) -> None:
    members = [Member(3, {"planner.log_tau": 0.0}), Member(4, {"planner.log_tau": 2.0})]
    loop, seen = loop_of(tmp_path, members), observations()
    actions = acted(loop, seen)
    for k, log_tau in enumerate((0.0, 2.0)):
        alone = loop_of(tmp_path, [Member(3 + k)], planner__log_tau=log_tau)
        assert acted(alone, seen)[0].equal(actions[k])
        policy = TrainedPolicy(loop, k)  # type: ignore[arg-type]
        np.testing.assert_allclose(np.stack([policy(x) for x in seen.numpy()]), actions[k].numpy(), atol=1e-5)


@pytest.mark.slow
def test_without_a_step_one_normal_is_cloning(tmp_path: Path) -> None:
    single = small_logged("cfpi").replace(policy=small_policy())
    seen = observations()
    found = {}
    for name, method in {
        "still": set_values(single, {"planner.log_tau": 0.0}), "cloned": single.replace(planner=None), "single": single,
    }.items():  # fmt: skip
        found[name] = acted(OffPolicyLoop(method, logged_task(tmp_path), MEMBERS, 2, UPDATES), seen)
    assert found["still"].equal(found["cloned"]) and not torch.allclose(found["single"], found["cloned"], atol=1e-3)


def small_policy() -> SquashedPolicy:
    network = small_logged("cfpi").policy.network
    return SquashedPolicy(network=network, least=-5.0, most=2.0)


@pytest.mark.slow
def test_the_best_of_samples(tmp_path: Path) -> None:
    """It is worth as much as every one of the samples, and as the best of the first of them, at every observation."""
    seen, loop = observations(), loop_of(tmp_path, planner="best-of-samples", planner__count=8)
    module: Any = loop.actor.planner
    again = OffPolicyLoop(loop.composed, loop.task, MEMBERS, 2, UPDATES)
    assert acted(again, seen).equal(acted(loop, seen))
    again.close()

    def worth_of(first: int, last: int) -> Tensor:
        """[2, 12] of what is done where these are the samples; in units, which are half of the torques."""
        module.noise = whole[:, first:last]
        with torch.no_grad():
            said = loop.actor.held["critic"](loop.actor.see(seen.expand(2, -1, -1)), acted(loop, seen) / 2)[..., 0]
        return said.mean(1) - said.std(1)

    whole = module.noise
    best, each = worth_of(0, 8), torch.stack([worth_of(k, k + 1) for k in range(8)])
    torch.testing.assert_close(best, each.amax(0), atol=1e-5, rtol=0)
    fewer = torch.stack([worth_of(0, k) for k in range(1, 9)])
    assert bool((fewer.diff(dim=0) >= -1e-5).all()) and bool((best > each[0] + 1e-4).any())


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("iql", {"planner": "closed-form-improvement"}, "ClosedFormImprovement steps from normals before tanh"),
        ("bc", {"planner": "closed-form-improvement"}, "acts by what a critic says of actions: set critic=q-functions"),
        ("td3-bc", {"planner": "best-of-samples"}, "BestOfSamples draws numbers by chance"),
        ("cfpi", {"transforms": "standardize-observations"}, "OwnSarsa asks what was done next, which no row says"),
        ("cfpi", {"sampling.horizon": "n-step"}, "OwnSarsa asks what was done after one step"),
        ("cfpi", {"critic": "q-functions", "critic.backup": "own-sarsa"}, "set critic=sarsa-q-functions"),
        ("cfpi", {"critic.backup": "bootstrap"}, "SarsaQFunctions has a target for each network, and Bootstrap one"),
        ("cfpi", {"planner.operators": ()}, "ClosedFormImprovement has nobody who proposes"),
    ],
)
def test_what_cannot_work_together_is_said(name: str, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check(set_values(get_method(name), settings))


def test_values_of_iql_serve_as_well() -> None:
    settings = {
        "policy": "mixture-policy", "actor.clone.weight": "ones", "planner": "closed-form-improvement",
        "planner.beta": 2**-0.5,
    }  # fmt: skip
    check(set_values(get_method("iql"), settings))
    check(set_values(get_method("cfpi"), {"policy": "squashed-policy"}))
