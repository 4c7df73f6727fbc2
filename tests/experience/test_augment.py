"""Images that move by chance: each row of a batch by numbers of its own, the same whoever else is trained."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from etude.core.errors import ConfigError
from etude.core.population import Member, Population
from etude.core.streams import Stream
from etude.experience.augment import RandomShift
from etude.experience.images import ImageStore
from etude.experience.sampling import NStep, OneStep, UniformRows, Window
from etude.experience.stretches import LENGTH, Stretches
from etude.loops.off_policy import OffPolicyLoop
from etude.policies.control.networks import MLP
from etude.tasks.control.cartpole import cartpole
from spot_toys import SpotTask, seeing

torch.set_num_threads(1)
SHAPE = (2, 5, 7)


def filled(seeds: list[int]) -> ImageStore:
    """Random images, each member's of its own."""
    store = ImageStore(len(seeds), 1, 30, SHAPE, 1)
    generators = [torch.Generator().manual_seed(s) for s in seeds]
    for t in range(40):
        draws = [torch.randint(256, (1, *SHAPE), generator=g, dtype=torch.uint8) for g in generators]
        one, end = torch.ones(len(seeds), 1), torch.full((len(seeds), 1), float(t % 9 == 0))
        store.push(torch.stack(draws), one[..., None], torch.stack(draws).flip(-1), one, one, end)
    return store


def batches(seeds: list[int], updates: list[int], augment: Any, horizon: Any = OneStep()) -> list[Any]:  # noqa: B008
    part = UniformRows(batch=20, horizon=horizon, augment=augment)
    store, stretches = filled(seeds), Stretches(Population([Member(s) for s in seeds]), "learn")
    return [part.draw(store, stretches.at(u)) for u in updates]


def by_hand(image: Tensor, shift: Tensor, pixels: int) -> Tensor:
    """One image [C, H, W], padded by its edge and cut out."""
    wide = pad(image.float(), (pixels,) * 4, mode="replicate").to(image.dtype)
    down, right = (int(x) + pixels for x in shift)
    return wide[:, down : down + image.shape[1], right : right + image.shape[2]]


@pytest.mark.parametrize("pixels", [1, 4, 9])
def test_every_row_is_padded_and_cut_by_its_own_numbers(pixels: int) -> None:
    plain, moved = (batches([3, 4], [5], augment)[0] for augment in (None, RandomShift(pixels)))
    assert moved.observations.dtype == torch.uint8 and torch.equal(plain.index, moved.index)
    shifts = {}
    for name in ("here", "next"):
        each = [
            torch.randint(
                2 * pixels + 1, (LENGTH, 20, 2), generator=Stream(s).split("learn", f"augment {name}", 0).torch
            )
            for s in (3, 4)
        ]
        shifts[name] = torch.stack(each)[:, 5] - pixels
    assert not torch.equal(shifts["here"], shifts["next"]) and not torch.equal(*shifts["here"])
    for m in range(2):
        for n in range(20):
            here, led = shifts["here"][m, n], shifts["next"][m, n]
            assert torch.equal(moved.observations[m, n], by_hand(plain.observations[m, n], here, pixels))
            assert torch.equal(moved.next_observations[m, n], by_hand(plain.next_observations[m, n], led, pixels))


def test_a_member_alone_is_moved_as_among_others() -> None:
    together = batches([3, 4, 9], [0, LENGTH + 1], RandomShift())
    alone = batches([4], [0, LENGTH + 1], RandomShift())
    for all_of_them, own in zip(together, alone, strict=True):
        assert torch.equal(all_of_them.observations[1], own.observations[0])
        assert torch.equal(all_of_them.next_observations[1], own.next_observations[0])


def test_the_steps_of_a_window_move_as_one() -> None:
    plain, moved = (batches([3], [2], augment, Window(length=3))[0] for augment in (None, RandomShift(2)))
    shifts = torch.randint(5, (LENGTH, 20, 2), generator=Stream(3).split("learn", "augment here", 0).torch)[2] - 2
    for n in range(20):
        for t in range(3):
            assert torch.equal(moved.observations[0, n, t], by_hand(plain.observations[0, n, t], shifts[n], 2))


@pytest.mark.slow
def test_rows_of_a_learners_own_horizon_are_moved_too() -> None:
    method = seeing()
    method = method.replace(
        sampling=method.sampling.replace(augment=RandomShift(2)), critic=method.critic.replace(sampling=NStep(n=2))
    )
    loop = OffPolicyLoop(method, SpotTask(), [Member(3)], 1, 30)
    loop.step()
    seen = loop.updater.trainers["critic"].batch
    assert seen is not None and seen.index is not None
    plain = NStep(n=2).read(loop.collector.store, seen.index)
    assert torch.equal(plain.rewards, seen.rewards) and not torch.equal(plain.observations, seen.observations)


def test_what_is_no_image_is_refused_before_anything_is_trained() -> None:
    method = seeing().replace(sampling=UniformRows(batch=6, augment=RandomShift()))
    plain = method.replace(
        critic=method.critic.replace(network=MLP(hidden=(8,))), policy=method.policy.replace(observations=())
    )
    with pytest.raises(ConfigError, match=r"RandomShift moves images, and observations are vectors \[4\]: set samp"):
        OffPolicyLoop(plain, cartpole, [Member(3)], 1)
    own = plain.replace(
        sampling=UniformRows(batch=6), critic=plain.critic.replace(sampling=UniformRows(batch=6, augment=RandomShift()))
    )
    with pytest.raises(ConfigError, match="RandomShift moves images"):
        OffPolicyLoop(own, cartpole, [Member(3)], 1)
