"""Ranks that follow: what they are given for a step is all that the step depends on."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch

from etude.core import stages
from etude.core.batches import Head
from etude.core.errors import ConfigError, InvariantError
from etude.core.method import Method
from etude.core.registry import get_method
from etude.learners.value_model import ValueModel
from etude.loops.language import LanguageLoop
from etude.loops.team import Follower, Team, _received, _sent
from etude.policies.language import LanguagePolicy
from etude.runtime.executors.local import Local
from etude.runtime.ranks import ALONE
from etude.stages.phases import Phase
from etude.tasks import resolve_task
from language_toys import random_batch

STEPS = 4


@cache
def tiny() -> LanguagePolicy:
    return LanguagePolicy.load("tiny", device="cpu")


def followed(method: Method, task: str = "compose") -> tuple[LanguageLoop, Follower]:
    """A loop whose team is a follower in this process, which meets nobody: it does all of each update again."""
    follower = Follower(method, copy.deepcopy(tiny()), rank=1, seed=6, steps=STEPS, budget=256)
    team = Team(Local(follower), ALONE)
    loop = LanguageLoop(
        method, resolve_task(task), copy.deepcopy(tiny()), seed=6, steps=STEPS, micro_tokens=256, team=team
    )
    return loop, follower


def assert_alike(loop: LanguageLoop, follower: Follower) -> None:
    """Weights, moments, critic and heads, to the last bit."""
    assert follower.model is not None
    mine, theirs = loop.models["policy"].tensors(), follower.model.tensors()
    assert not any(k.startswith("reference.") for k in theirs)
    read = {k for k in theirs if not k.startswith("learners.") or k.startswith("learners.critic.")}
    assert read
    for name in read:
        assert torch.equal(mine[name], theirs[name]), name


def few(name: str, **changes: Any) -> Method:
    method: Any = get_method(name)
    return method.replace(problems=4, **changes)  # type: ignore[no-any-return]


METHODS = {
    "stages": lambda: few("grpo", stages=(Phase(like="sft", end=0.5), Phase())),
    "a critic of its own": lambda: few("ppo", critic=ValueModel(), epochs=1),
    "weights of tokens": lambda: few("clip-cov", epochs=1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_who_follows_makes_the_same_weights(name: str) -> None:
    loop, follower = followed(METHODS[name]())
    taken, take = list[int](), follower.take

    def counted(file: str, stage: int, counters: Any) -> Any:
        taken.append(stage)
        return take(file, stage, counters)

    follower.take = counted  # type: ignore[method-assign]
    for _ in range(STEPS):
        loop.step()
        assert_alike(loop, follower)
    assert taken == ([0, 1] if name == "stages" else [0])


@pytest.mark.slow
def test_who_follows_is_given_weights_that_something_else_has_changed() -> None:
    loop, follower = followed(few("sft"))
    loop.step()
    loop.policy.load_tensors({k: v + 0.1 for k, v in loop.policy.tensors().items()})
    loop.step()
    assert_alike(loop, follower)


@pytest.mark.slow
def test_an_error_in_the_middle_of_an_update_leaves_nothing_to_save(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, _ = followed(few("sft"))

    def fails(*args: Any, **options: Any) -> None:
        raise InvariantError("No.")

    monkeypatch.setattr(loop.updater, "run_together", fails)
    with pytest.raises(InvariantError) as caught:
        loop.step()
    assert not caught.value.intact


def test_rows_arrive_as_they_were_sent() -> None:
    batch = random_batch((2, 1), temperature=0.7)
    batch = batch.replace(offers={"judge": torch.ones(3)}, advantages=torch.rand(batch.tokens.shape))
    batch.head = Head(torch.rand(5, 2), None, 0.7, 30.0)
    method = stages.bound(get_method("grpo"))[0][1]
    arrived, states = _received(*_sent(batch, method))
    assert (arrived.temperature, len(arrived.episodes), states) == (0.7, 3, {})
    with pytest.raises(ConfigError, match="reads the stop of episodes, and with --ranks"):
        _ = arrived.rows(torch.tensor([1])).episodes[0].stop
    assert (
        arrived.head is not None
        and arrived.head.softcap == 30.0
        and torch.equal(arrived.head.weight, batch.head.weight)
    )
    assert torch.equal(arrived.offers["judge"], torch.ones(3))
    for name, tensor in batch._tensors().items():
        assert torch.equal(arrived._tensors()[name], tensor), name
