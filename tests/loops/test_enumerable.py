"""The loop over enumerable policies: members never meet, runs resume exactly, and it does what the token loop does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from etude.core.errors import ConfigError
from etude.core.registry import files, get_method
from etude.experience.groups import Groups
from etude.loops.enumerable import EnumerableLoop
from etude.tasks import resolve_task
from etude.tasks.tabular.enumerable import Enumerable
from etude.training import check_fit

pytestmark = pytest.mark.usefixtures("one_thread")
TASK = Enumerable(prompts=3, vocabulary=3, length=2)


def fits(name: str) -> bool:
    """Whether plain groups are all that the method samples."""
    try:
        check_fit(get_method(name), TASK)
    except ConfigError:
        return False
    return True


METHODS = [name for name in sorted(files("methods")) if fits(name)]


def trained(method: str, seeds: list[int], steps: int = 4) -> EnumerableLoop:
    loop = EnumerableLoop(get_method(method), TASK, seeds=seeds, steps=steps)
    for _ in range(steps):
        loop.step()
    return loop


@pytest.mark.parametrize("method", METHODS)
def test_a_member_is_the_same_alone(method: str) -> None:
    together, alone = trained(method, [5, 6, 7]), trained(method, [6])
    assert torch.equal(together.policy.logits[1], alone.policy.logits[0])
    assert not torch.equal(together.policy.logits[0], together.policy.logits[1])


@pytest.mark.parametrize("method", METHODS)
def test_it_resumes_as_if_it_had_never_stopped(method: str, tmp_path: Path) -> None:
    whole = trained(method, [1, 2], steps=4)
    half = EnumerableLoop(get_method(method), TASK, seeds=[1, 2], steps=4)
    half.step(), half.step()
    half.save(tmp_path)
    again = EnumerableLoop(get_method(method), TASK, seeds=[1, 2], steps=4)
    again.load(tmp_path)
    again.step(), again.step()
    for a, b in zip(whole.policy.logits, again.policy.logits):
        assert torch.equal(a, b)


def test_samples_are_drawn_by_member_step_prompt_and_number() -> None:
    """More members and more samples leave those that there were; everything else makes others."""

    def responses(seeds: list[int], size: int, finished: int = 0) -> torch.Tensor:
        method = get_method("grpo").replace(experience=Groups(size=size), filters=())
        loop = EnumerableLoop(method, TASK, seeds=seeds, steps=4)
        loop.finished = finished
        batches = loop._collect()
        assert len(torch.cat([b.draw for b in batches]).unique()) == len(seeds) * 3 * size
        return torch.stack([b.extras["response"].view(3, size) for b in batches])

    whole = responses([5, 6], 64)
    assert torch.equal(responses([6], 64)[0], whole[1])
    assert torch.equal(responses([6, 5], 16).flip(0), whole[:, :, :16])
    rows = [*whole.flatten(0, 1), *responses([5], 64, finished=1)[0]]
    assert len({tuple(row.tolist()) for row in rows}) == 9


def test_the_usual_methods_are_among_those_tested() -> None:
    assert {"reinforce", "rloo", "grpo", "dapo", "lite-ppo"} <= set(METHODS)


def test_expected_reward_rises_and_is_what_samples_earn() -> None:
    loop = EnumerableLoop(get_method("grpo"), Enumerable(), seeds=range(8), steps=60)
    before = loop.exact()["reward"]
    for _ in range(60):
        loop.step()
    after = loop.exact()
    assert float((after["reward"] - before).min()) > 0.15
    assert (after["pass@4"] >= after["pass@1"] - 1e-12).all() and (after["pass@16"] <= 1 + 1e-12).all()


def test_policies_that_need_more_than_plain_groups_are_refused() -> None:
    with pytest.raises(ConfigError, match="enumerable policies are sampled in plain groups"):
        check_fit(get_method("sft"), resolve_task("enumerable"))
    with pytest.raises(ConfigError, match="neither a critic nor stages"):
        check_fit(get_method("ppo"), resolve_task("enumerable"))


def test_tables_that_cannot_be_enumerated_are_refused() -> None:
    with pytest.raises(ConfigError, match="at most 4096"):
        Enumerable(vocabulary=8, length=8)
    with pytest.raises(ConfigError, match="less than the 4 responses"):
        Enumerable(length=1, vocabulary=4, solutions=4)
