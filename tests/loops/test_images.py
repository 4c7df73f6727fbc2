"""Methods that learn from a replay see images: members of their own, resumed exactly, each task trained to its end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from etude.core.control import Step
from etude.core.errors import ConfigError
from etude.core.population import Member
from etude.evaluation.export import plain_policy
from etude.experience.images import ImageStore
from etude.loops.off_policy import OffPolicyLoop
from etude.policies.control.frames import Stacked
from replay_toys import REPLAY, small
from solo_runs import alike
from spot_toys import SIDE, SpotTask, seeing

torch.set_num_threads(1)


def loop_of(method: Any, seeds: Sequence[int] = (3, 4), boxes: bool = False, block: int = 27) -> OffPolicyLoop:
    return OffPolicyLoop(method, SpotTask(boxes=boxes), [Member(s) for s in seeds], 4, block)


def store_of(loop: OffPolicyLoop) -> ImageStore:
    store = loop.collector.store
    assert isinstance(store, ImageStore)
    return store


def everything(loop: OffPolicyLoop) -> dict[str, torch.Tensor]:
    store = store_of(loop)
    rows = store.read(torch.arange(store.size).expand(store.members, -1))
    seen = {"seen": rows.observations, "led": rows.next_observations, "rows": store.grid[:, : store.size]}
    return {**loop.policy_tensors(), **loop.updater.tensors(), **seen}


@pytest.mark.slow
def test_what_is_stored_is_what_the_environment_showed() -> None:
    """Stacks of three in two environments, with the ring wrapped; the true last ones where episodes ended."""
    loop = loop_of(seeing(3, environments=2))
    shown: list[tuple[np.ndarray, Step]] = []
    environment, collector = loop.collector.environment, loop.collector
    assert isinstance(environment, Stacked)
    step = environment.step

    def spied(actions: np.ndarray) -> Step:
        before = collector.observations.copy()
        shown.append((before, step(actions)))
        return shown[-1][1]

    environment.step = spied  # type: ignore[method-assign]
    loop.step(), loop.step()
    store = store_of(loop)
    assert store.frame == (1, SIDE, SIDE) and store.depth == 3 and store.size == 40 < store.pushed
    rows = store.read(torch.arange(40).expand(2, -1))
    for t, (before, answer) in enumerate(shown[-20:], len(shown) - 20):
        place = [2 * t % 40, (2 * t + 1) % 40]
        led, done = answer.observations.copy(), answer.terminated | answer.truncated
        if answer.final is not None:
            led[done] = answer.final
        assert (rows.observations[:, place].numpy() == before).all()
        assert (rows.next_observations[:, place].numpy() == led).all()
    assert sum(int((a.terminated | a.truncated).sum()) for _, a in shown[-20:]) > 5


@pytest.mark.slow
@pytest.mark.parametrize("stacked", [1, 3])
def test_a_resumed_run_is_the_one_that_never_stopped(stacked: int, tmp_path: Path) -> None:
    loop, again = loop_of(seeing(stacked)), loop_of(seeing(stacked))
    loop.step(), loop.step()
    for name in ("one", "a", "b"):
        (tmp_path / name).mkdir()
    loop.save(tmp_path / "one")
    after = loop.step().members
    again.load(tmp_path / "one")
    assert again.step().members == after
    assert all(torch.equal(v, everything(again)[k]) for k, v in everything(loop).items())
    for name, run in (("a", loop), ("b", again)):
        run.save(tmp_path / name)
    files = [{p.name: p.read_bytes() for p in (tmp_path / name / "replay").iterdir()} for name in ("a", "b")]
    assert files[0] == files[1]


@pytest.mark.slow
def test_a_member_is_the_run_of_its_seed() -> None:
    together, alone = loop_of(seeing(2), (3, 4, 9)), loop_of(seeing(2), (4,))
    for loop in (together, alone):
        loop.step(), loop.step()
    for key, value in everything(alone).items():
        if value.dim():
            count = len(everything(together)[key]) // 3
            assert alike(everything(together)[key][count : 2 * count], value), key


def test_who_is_exported_stacks_frames_as_who_acts() -> None:
    loop = loop_of(seeing(3))
    policy = plain_policy(loop, 1)
    environment = Stacked(SpotTask().make([4], 1), 3)
    shown, state, begins = environment.reset(), policy.initial(1), torch.ones(1, dtype=torch.bool)
    for _ in range(4):
        action, state = policy(torch.from_numpy(shown[0, :, -1][..., None]), begins, state)
        assert torch.equal(state["frames"], torch.from_numpy(shown[0]))
        shown = environment.step(action.numpy().reshape(1, 1, 1).astype(np.float32)).observations
        begins = torch.zeros(1, dtype=torch.bool)


def test_what_keeps_the_last_step_alone_keeps_no_images() -> None:
    method = small(REPLAY["stream-x"])
    method = method.replace(critic=seeing().critic.replace(learning=method.critic.learning))
    with pytest.raises(ConfigError, match=r"Latest learns from vectors, and observations are images \[1, 6, 6\]"):
        loop_of(method)
