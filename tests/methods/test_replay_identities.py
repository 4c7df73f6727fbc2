"""What methods that learn from a replay come to at their limits: their parents, bit for bit; parts, each other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from etude.core.edit import set_values
from etude.core.errors import ConfigError
from etude.core.population import Member
from etude.learners.backups import Argmax, SoftMax
from etude.loops.off_policy import OffPolicyLoop
from etude.objectives.reductions import LowerBound, Mean, Min
from etude.tasks.control.cartpole import cartpole
from etude.tasks.control.pendulum import pendulum
from replay_toys import REPLAY, small

torch.set_num_threads(1)


def trained(method: Any, task: Any = pendulum) -> dict[str, torch.Tensor]:
    """All tensors of two members after two blocks, the rows that they stored among them."""
    loop = OffPolicyLoop(method, task, [Member(3), Member(4)], 2, 24)
    loop.step(), loop.step()
    assert loop.updater.updates > 10
    return {**loop.policy_tensors(), **loop.updater.tensors(), "rows": loop.collector.store.grid}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    assert one.keys() == other.keys()
    return all(torch.equal(v, other[k]) for k, v in one.items())


@pytest.mark.slow
def test_td3_without_its_changes_is_ddpg_bit_for_bit() -> None:
    """With its networks, optimizers, slow copies and batch: one critic, no smoothing, no delay."""
    ddpg, td3 = small(REPLAY["ddpg"]), small(REPLAY["td3"])
    sizes = {"network": ddpg.policy.network, "last": ddpg.policy.last}
    plain = td3.replace(
        policy=td3.policy.replace(**sizes, learning=ddpg.policy.learning),
        critic=td3.critic.replace(**sizes, learning=ddpg.critic.learning),
        sampling=ddpg.sampling, exploration=ddpg.exploration,
    )  # fmt: skip
    without = {"critic.count": 1, "critic.backup.rule.noise": None}
    wanted = trained(ddpg)
    assert same(trained(set_values(plain, without)), wanted)
    assert not same(trained(set_values(plain, {**without, "policy.learning.every": 2})), wanted)


# Parts that no method has yet


def said(values: torch.Tensor) -> Any:
    """Rows whose critics say these values [P, M, N, A] of what may be done next."""
    outputs = values[..., None]
    return SimpleNamespace(outputs=lambda at, copy=False: outputs, values=lambda x: x.squeeze(-1))


def test_softmax_is_the_best_choice_when_cold_and_the_mean_when_hot() -> None:
    g = torch.Generator().manual_seed(0)
    values = torch.randn(2, 1, 5, 3, generator=g)
    read = said(values)
    for temperature, wanted in ((1e-4, values.amax(-1)), (1e6, values.mean(-1))):
        found = SoftMax(temperature=temperature)(read)
        assert found.chances is not None
        means = (found.chances[:, None, ..., None] * found.outputs).sum(-2).squeeze(-1)
        torch.testing.assert_close(means, wanted, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(Argmax()(read).outputs.squeeze(-1), values.amax(-1))


def test_softmax_by_hand() -> None:
    """Of several critics by their mean: 1 and 3, so at a temperature of 2 the odds are e; -H is the log-probability."""
    read = said(torch.tensor([[[[0.0, 5.0]], [[2.0, 1.0]]]]))
    found = SoftMax(temperature=2.0)(read)
    second = 1 / (1 + torch.tensor(-1.0).exp())
    chances = torch.stack([1 - second, second])
    assert found.chances is not None and found.logp is not None
    torch.testing.assert_close(found.chances[0, 0], chances)
    torch.testing.assert_close(found.logp[0, 0], (chances * chances.log()).sum())


@pytest.mark.slow
def test_a_method_learns_by_softmax_and_nearly_as_dqn_when_cold() -> None:
    dqn = set_values(small(REPLAY["dqn"], every=1), {"critic.learning.target.every": 3})
    cold = set_values(dqn, {"critic.backup.rule": "soft-max", "critic.backup.rule.temperature": 1e-6})
    one, other = trained(dqn, cartpole), trained(cold, cartpole)
    assert all(torch.allclose(v, other[k], atol=1e-4) for k, v in one.items())
    warm = trained(set_values(cold, {"critic.backup.rule.temperature": 1.0}), cartpole)
    assert not all(torch.allclose(v, warm[k], atol=1e-4) for k, v in one.items())


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("c51", "SoftMax takes means of values, and the critic says 51 probabilities of each: set critic.head=scalar"),
     ("map-dqn", "SoftMax takes means of values, and the critic says 2 numbers of each"),
     ("sac-discrete", "SoftMax goes by what the critic says of every choice, and the policy has its own")],
)  # fmt: skip
def test_softmax_is_refused_where_it_has_no_values_or_another_acts(name: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        set_values(REPLAY[name], {"critic.backup.rule": "soft-max"}).check()


def test_a_lower_bound_of_two_is_the_smallest_and_without_beta_the_mean() -> None:
    values = torch.randn(3, 2, 7, generator=torch.Generator().manual_seed(1))
    read: Any = None
    torch.testing.assert_close(LowerBound(beta=1.0)(values, read), Min()(values, read))
    torch.testing.assert_close(LowerBound(beta=0.0)(values, read), Mean()(values, read))
    assert torch.equal(LowerBound(beta=2.0)(values[:, :1], read), values[:, 0])
    four = torch.tensor([[[1.0], [2.0], [3.0], [6.0]]])  # mean 3, variance (4 + 1 + 0 + 9) / 4
    torch.testing.assert_close(LowerBound(beta=0.5)(four, read), torch.tensor([[3 - 0.5 * 3.5**0.5]]))


@pytest.mark.slow
def test_td3_with_a_lower_bound_of_its_two_critics_is_td3() -> None:
    """Actor and target: but for rounding, to which rewards are the same."""
    td3 = small(REPLAY["td3"])
    bound = set_values(td3, {"critic.backup.reduce": "lower-bound", "critic.backup.reduce.beta": 1.0})
    one, other = trained(td3), trained(bound)
    assert all(torch.allclose(v, other[k], atol=1e-3) for k, v in one.items())


@pytest.mark.slow
def test_numbers_of_both_may_differ_between_members() -> None:
    td3 = set_values(small(REPLAY["td3"]), {"critic.backup.reduce": "lower-bound"})
    dqn = set_values(small(REPLAY["dqn"], every=1), {"critic.backup.rule": "soft-max"})
    for method, path, task in (
        (td3, "critic.backup.reduce.beta", pendulum), (dqn, "critic.backup.rule.temperature", cartpole)
    ):  # fmt: skip
        members = [Member(3, {path: 0.3}), Member(4, {path: 2.0})]
        both = OffPolicyLoop(method, task, members, 2, 24)
        alone = OffPolicyLoop(method, task, members[1:], 2, 24)
        for loop in (both, alone):
            loop.step(), loop.step()
        for key, value in alone.policy_tensors().items():
            torch.testing.assert_close(both.policy_tensors()[key][len(value) :], value, atol=1e-5, rtol=1e-5)
