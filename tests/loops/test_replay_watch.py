"""What a run from a replay says once and goes on: returns that its critic cannot say, values without bound."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import etude
from etude.core.edit import set_values
from etude.core.errors import ConfigError
from etude.core.population import Member
from etude.experience.store import Store
from etude.loops.off_policy import OffPolicyLoop
from etude.loops.replay_watch import last_steps, returns
from etude.tasks.control.cartpole import cartpole
from etude.tasks.control.pendulum import pendulum
from replay_toys import REPLAY, small

torch.set_num_threads(1)
OUT = "returns_out_of_range"


def loop_of(name: str, block: int = 40, **changes: Any) -> OffPolicyLoop:
    method = set_values(small(REPLAY[name], capacity=400), {k.replace("__", "."): v for k, v in changes.items()})
    task: Any = pendulum if name in ("td3", "sac") else cartpole
    return OffPolicyLoop(method, task, [Member(3), Member(4)], 6, block)


@pytest.mark.parametrize("length", [1, 2, 5, 16, 37])
def test_returns_are_summed_to_the_end_of_each_episode(length: int) -> None:
    g = torch.Generator().manual_seed(length)
    rewards = torch.randn(2, length, 3, generator=g, dtype=torch.float64)
    end = (torch.rand(2, length, 3, generator=g) < 0.2).double()
    gamma = torch.tensor([0.9, 1.0], dtype=torch.float64)
    found, last = returns(rewards, end, gamma[:, None, None]), last_steps(end)
    for p in range(2):
        for e in range(3):
            total, place = 0.0, length
            for t in reversed(range(length)):
                if end[p, t, e]:
                    total, place = 0.0, t
                total = float(rewards[p, t, e]) + float(gamma[p]) * total
                assert float(found[p, t, e]) == pytest.approx(total) and int(last[p, t, e]) == place


def pushed(store: Store, rewards: list[float], ends: list[int]) -> None:
    for t, reward in enumerate(rewards):
        one, end = torch.zeros(2, 1, 4), torch.full((2, 1), float(t in ends))
        store.push(one, one[..., :1], one, torch.tensor([[reward], [0.0]]), 1 - end, end)


def test_episodes_are_counted_where_any_step_of_them_has_a_return_beyond() -> None:
    """Of member 0's three episodes the first leaves 0 to 3 near its end alone, the second nowhere, the third has not
    ended; in the next step it ends, below 0."""
    loop = loop_of("c51", critic__head__low=0.0, critic__head__high=3.0, sampling__horizon__gamma=0.5)
    store = loop.collector.store
    pushed(store, [0, 0, 0, 0, 3.5, 1, 1, -0.1], [4, 6])
    with pytest.warns(UserWarning, match="1 of the 4 episodes that ended in this step") as said:
        assert loop.watched.watch(loop.updater, store) == {OUT: 1.0}
    text = str(said[0].message)
    assert "3.5 to 3.5 where 0 to 3 can be said" in text and "Set critic.head.low and critic.head.high" in text
    pushed(store, [0.0, 0.0], [1])
    assert loop.watched.watch(loop.updater, store) == {OUT: 1.0}


@pytest.mark.slow
def test_returns_beyond_the_atoms_are_said_once_and_counted(tmp_path: Path) -> None:
    loop = loop_of("rainbow", critic__head__head__high=5.0)
    with pytest.warns(UserWarning, match=r"Set critic\.head\.head\.low and critic\.head\.head\.high") as said:
        first = loop.step()
    assert len(said) == 1 and first.metrics[OUT] == len(first.episodes) > 0
    loop.save(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second = loop.step()
        again = loop_of("rainbow", critic__head__head__high=5.0)
        again.load(tmp_path)
        assert again.step().metrics[OUT] == second.metrics[OUT] > 0
        fine = loop_of("rainbow")
        assert fine.step().metrics[OUT] == 0.0
        assert OUT not in loop_of("dqn").step().metrics


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dqn", "td3"])
def test_values_without_bound_are_said_once_and_the_run_goes_on(name: str) -> None:
    """Steps that count 1 add up to 100 at most with gamma 0.99, and to no more than the steps so far."""
    loop = loop_of(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loop.step()
    bias: Any = loop.critic.head.bias  # type: ignore[union-attr]
    bias.data.view(2, -1)[1] += 1e6
    with pytest.warns(UserWarning, match="Values grow without bound: the median .Q. of member 1") as said:
        loop.step()
    assert len(said) == 1 and "raise critic.learning.target.every" in str(said[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert loop.step().metrics["updates"] > 0


def test_values_between_bounds_do_not_grow() -> None:
    """Chances that are alike have a mean of 5e5, far above what rewards allow."""
    loop = loop_of("c51", critic__head__high=1e6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loop.step()


def test_what_a_step_counts_has_the_entropy_where_it_is_rewarded_and_the_units_of_the_critic() -> None:
    class Read:
        def policy(self, at: str) -> Any:
            return type("Choice", (), {"logp": torch.tensor([[1.0, -3.0], [0.5, 0.2]])})

        def offered(self, name: str) -> torch.Tensor:
            return torch.tensor([2.0, 10.0])

    read: Any = Read()
    ones = torch.ones(2)
    assert REPLAY["sac"].critic.counts(ones, read).tolist() == [7.0, 6.0]  # type: ignore[union-attr]
    assert REPLAY["td3"].critic.counts(ones, read) is ones  # type: ignore[union-attr]
    scaled: Any = REPLAY["mrq"].bind().critic  # type: ignore[union-attr]
    assert scaled.counts(ones, read) is ones
    scaled.backup.followed(SimpleNamespace(rewards=torch.tensor([[2.0, 0.0], [1.0, 7.0]])))
    assert scaled.counts(ones, read).tolist() == [1.0, 0.25]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rainbow", "sac"])
def test_watching_changes_no_number(name: str) -> None:
    watched, blind = loop_of(name), loop_of(name)
    blind.watched.watch = lambda updater, store: {}  # type: ignore[method-assign]
    for _ in range(3):
        watched.step(), blind.step()
    assert all(torch.equal(v, blind.policy_tensors()[k]) for k, v in watched.policy_tensors().items())


def test_a_copy_every_0_updates_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Target\.every must be"):
        set_values(REPLAY["dqn"], ["critic.learning.target.every=0"])


def test_a_copy_that_would_never_move_is_refused(tmp_path: Path) -> None:
    """1,024 transitions begin to learn: every 256 of them make 128 updates, so 2,000 make 512 at most."""
    sentence = (
        r"slow copy of the critic moves every 600 updates, and 2,000 environment steps make 512: .* Lower critic\."
    )
    with pytest.raises(ConfigError, match=sentence):
        etude.train(
            "dqn",
            "cartpole",
            steps=2000,
            seeds=1,
            out=str(tmp_path / "run"),
            set={"critic.learning.target.every": 600, "experience.warmup": 1000},
        )
    assert not (tmp_path / "run").exists()
