"""MapDQN: maps and their inverses, rewards as sums of channels, and what a critic of channels refuses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from etude.core.critic_slots import Following, Rule
from etude.core.edit import set_values
from etude.core.errors import ConfigError
from etude.core.fit import check
from etude.core.population import Member
from etude.experience.prioritized import PrioritizedRows
from etude.experience.sampling import OneStep
from etude.loops.off_policy import OffPolicyLoop
from etude.loops.replay_watch import said_by_heads
from etude.methods.value.map_dqn.channels import AveragedBootstrap, Channels
from etude.methods.value.map_dqn.decompositions import Bands, Decomposition, Ensemble, Polar, Slices, Whole
from etude.methods.value.map_dqn.maps import IdentityMap, LogLinMap, LogMap, ValueMap
from etude.tasks.control.cartpole import cartpole
from replay_toys import REPLAY, fill, small

torch.set_num_threads(1)
METHOD: Any = REPLAY["map-dqn"]
MAPS = [IdentityMap(), LogMap(), LogLinMap(), LogMap(c=0.8, d=0.3), LogLinMap(c=0.8, d=0.3), LogLinMap(d=-1.0)]


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("f", MAPS, ids=repr)
def test_a_map_is_undone_and_increases(f: ValueMap) -> None:
    x = numbers(0.01687, 0.02, 0.3, 0.6874, 0.99, 1.0, 1.01, 7.0, 25.0)
    assert torch.allclose(f.inverse(f.forward(x)), x, rtol=1e-12)
    assert bool((f.forward(x).diff() > 0).all())


@pytest.mark.parametrize(("c", "d"), [(0.5, 0.0), (0.8, 0.3), (0.5, -1.0)])
def test_the_line_continues_the_logarithm_with_its_slope(c: float, d: float) -> None:
    f, h = LogLinMap(c=c, d=d), 1e-6
    x0 = torch.tensor(-d / c, dtype=torch.float64).exp()
    below, at, above = f.forward(torch.stack([x0 - h, x0, x0 + h]))
    assert abs(float(at)) < 1e-12
    assert float((at - below) / h) == pytest.approx(float(c / x0), rel=1e-5)
    assert float((above - at) / h) == pytest.approx(float(c / x0), rel=1e-5)
    y = f.inverse(numbers(-h, 0.0, h))
    assert float(y[1]) == pytest.approx(float(x0)) and float(y.diff().diff().abs()) < 1e-10


def test_maps_by_hand() -> None:
    """0.5 ln x, and 0.5 x - 0.5 beyond 1; below 0.01687 nothing is smaller."""
    assert LogMap().forward(numbers(0.01687, 0.0, -3.0)).tolist() == pytest.approx([-2.0411092] * 3, abs=1e-7)
    assert LogMap().forward(numbers(2.718281828)).item() == pytest.approx(0.5)
    assert LogLinMap().forward(numbers(3.0, 0.5)).tolist() == pytest.approx([1.0, -0.34657359])
    assert LogLinMap().inverse(numbers(1.0, -0.34657359)).tolist() == pytest.approx([3.0, 0.5])


REWARDS = numbers(0.0, 0.4, 1.0, 1.5, 10.0, 10.5, 55.0, 100.0)


@pytest.mark.parametrize(
    ("part", "most"),
    [
        (Whole(limit=None), 1e9), (Polar(of=Whole(limit=None)), 1e9), (Bands(count=3), 100.0), (Bands(count=1), 1.0),
        (Slices(count=3), 100.0), (Slices(count=1), 1.0), (Polar(of=Bands(count=3)), 100.0),
        (Polar(of=Slices(count=3)), 100.0), (Ensemble(of=Polar(of=Slices(count=3)), count=2), 100.0),
    ],
    ids=repr,
)  # fmt: skip
def test_channels_add_up_to_the_reward(part: Decomposition, most: float) -> None:
    signed = isinstance(part, (Polar, Ensemble)) or most > 1e3
    rewards = torch.cat([REWARDS, -REWARDS]) if signed else REWARDS
    rewards = rewards[rewards.abs() <= most]
    each = part.split(rewards)
    assert each.shape == (len(rewards), len(part.weights))
    assert torch.allclose((each * numbers(*part.weights)).sum(-1), rewards, rtol=1e-12)
    if most <= 1e3:
        assert bool((each >= 0).all()) and bool((each <= 1).all())


def test_channels_by_hand() -> None:
    """The paper's two configurations of 0.5, 7 and 30, and of what is beyond the last."""
    assert Bands(count=3).weights == (1, 10, 100) and Slices(count=4).weights == (1, 9, 90, 900)
    bands, slices = (part.split(numbers(0.5, 7.0, 30.0, 300.0)) for part in (Bands(count=3), Slices(count=3)))
    assert torch.allclose(bands, numbers(0.5, 0, 0, 0, 0.7, 0, 0, 0, 0.3, 0, 0, 1.0).view(4, 3))
    assert torch.allclose(slices, numbers(0.5, 0, 0, 1, 6 / 9, 0, 1, 1, 20 / 90, 1, 1, 1).view(4, 3))
    assert Polar(of=Bands(count=2)).weights == (1, 10, -1, -10)
    assert Polar().split(numbers(-3.0, 3.0)).tolist() == [[0, 1], [1, 0]]
    assert Ensemble(of=Polar(), count=2).weights == (0.5, 0.5, -0.5, -0.5)
    assert Ensemble(of=Polar(), count=2).split(numbers(-0.25)).tolist() == [[0, 0, 0.25, 0.25]]


def test_values_in_a_target_are_those_that_a_channel_can_have() -> None:
    """Between 0 and 1 / (1 - gamma), of the next step and of this one."""
    head = Channels(decomposition=Whole(), maps=(IdentityMap(),), most=2.0)
    said, one = torch.tensor([[[5.0], [-1.0], [1.5]]]), torch.ones(1, 3)
    assert head.target(0.5 * one, 0.5 * one, said).flatten().tolist() == [1.5, 0.5, 1.25]

    class Said(Rule):
        def __call__(self, read: Any) -> Following:
            return Following(torch.zeros(1, 1, 3, 1))

    batch = SimpleNamespace(rewards=0 * one, discounts=one, actions=None)
    read: Any = SimpleNamespace(batch=batch, outputs=lambda at, actions: said[:, None])
    assert AveragedBootstrap(Said(), share=0.5).target(read, head).flatten().tolist() == [1.0, 0.0, 0.75]


def test_an_ensemble_learns_each_channel_through_every_map() -> None:
    head = Channels(decomposition=Ensemble(of=Polar(), count=2), maps=(LogMap(), LogLinMap()))
    values = numbers(2.0, 4.0, 0.5, 3.0)
    said = head.mapped(values)
    wanted = [0.5 * torch.log(values[0]), 1.5, 0.5 * torch.log(values[2]), 1.0]
    assert said.tolist() == pytest.approx([float(x) for x in wanted])
    assert head.mean(said).item() == pytest.approx((2 + 4) / 2 - (0.5 + 3) / 2)


@pytest.mark.slow
def test_what_channels_can_say_is_known_and_said() -> None:
    head = METHOD.critic.head
    assert head.bounds().tolist() == [[-25.0, 25.0]]
    assert said_by_heads(METHOD).keys() == {"critic.head"}
    loop = OffPolicyLoop(set_values(small(METHOD), {"critic.head.most": 1.5}), cartpole, [Member(0)], 1, 40)
    with pytest.warns(UserWarning, match=r"-1\.5 to 1\.5 can be said: they are cut there\. Set critic\.head\.most to"):
        report = loop.step()
    assert report.metrics["returns_out_of_range"] > 0
    loop.close()


def test_an_update_makes_no_more_passes_than_dqns() -> None:
    passes = []
    for name in ("map-dqn", "dqn"):
        loop = OffPolicyLoop(small(REPLAY[name]), cartpole, [Member(0)], 1)
        fill(loop.collector.store)
        choices = loop.collector.store.rows[:, 4]
        choices.copy_((choices > 0).to(choices.dtype))
        loop.updater.run(loop.collector.store, loop.updater.rates(0, 1))
        passes.append(loop.updater.passes["critic"])
        loop.close()
    assert passes == [2, 2]


@pytest.mark.slow
def test_rows_are_drawn_by_what_all_channels_were_off() -> None:
    """Huber of each, summed: with prioritized rows, whose masses are |error|^alpha."""
    method = small(METHOD).replace(sampling=PrioritizedRows(batch=6, horizon=OneStep(gamma=0.96), alpha=1.0))
    part: Any = method.critic
    outputs, target = torch.tensor([[[[0.5, 3.0], [0.0, 0.0]]]]), torch.zeros(1, 2, 2)
    each = part.error(outputs, target[:, None]).sum(-1)
    assert part._errors(outputs, target, each).tolist() == [[0.125 + 2.5, 0.0]]
    loop = OffPolicyLoop(method, cartpole, [Member(0)], 1, 40)
    loop.step()
    loop.close()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sampling.horizon": "n-step"}, r"gets sums of several: set sampling\.horizon=one-step"),
        ({"critic.count": 2}, r"numbers, of which there is no smallest|set critic\.count=1"),
        ({"critic.head": "scalar"}, r"Scalar has none: set critic\.head=channels"),
    ],
)
def test_what_it_cannot_do_is_refused(changes: dict[str, Any], said: str) -> None:
    check(METHOD, cartpole)
    with pytest.raises(ConfigError, match=said):
        check(set_values(METHOD, changes), cartpole)


def test_policies_of_their_own_are_refused() -> None:
    method: Any = REPLAY["sac-discrete"]
    with pytest.raises(ConfigError, match=r"set policy=from-critic"):
        check(method.replace(critic=method.critic.replace(head=Channels(), count=1)), cartpole)


def test_maps_must_go_round_in_the_channels() -> None:
    with pytest.raises(ConfigError, match="go round in 2 channels, got 3"):
        Channels(maps=(LogMap(), LogMap(), LogMap()))
    with pytest.raises(ConfigError, match=r"AveragedBootstrap\.share must be"):
        AveragedBootstrap(share=0.0)
