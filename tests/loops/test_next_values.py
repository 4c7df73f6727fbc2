"""What a truncated episode goes on with: the critic's value of its whole text."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import Tensor

from etude.advantages.returns import GAE
from etude.core.batches import TokenBatch
from etude.core.episodes import Segment, StopReason
from etude.core.registry import get_method
from etude.core.rows import to_batch
from etude.core.task import SingleTurn, StepResult
from etude.experience.groups import Groups
from etude.loops.whole_batch import values_all
from etude.policies.language import LanguagePolicy
from language_toys import Toy, make_loop, random_episodes, random_policy


def policy_with_values(kind: str = "llama", **options: int) -> LanguagePolicy:
    """A random policy whose value head says something."""
    policy = random_policy(kind, **options)
    torch.nn.init.normal_(policy.add_value_head().weight, generator=torch.Generator().manual_seed(0))
    return policy


def value_of(policy: LanguagePolicy, tokens: list[int]) -> float:
    """V of a text, by a forward pass of its own."""
    with torch.no_grad():
        states = policy.backbone(policy.model)(input_ids=torch.tensor([tokens])).last_hidden_state
        return float(policy.add_value_head()(states[0, -1]))


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("budget", [8192, 24])
def test_values_after_the_last_token_of_truncated_rows_only(kind: str, budget: int) -> None:
    policy, episodes = policy_with_values(kind), random_episodes((3, 2, 3), turns=2)
    for number, (episode, stop) in enumerate(zip(episodes, StopReason)):
        episode.stop = stop
        if number % 2:  # an observation is what it goes on from
            episode.segments.append(Segment("user", "", [7, 8, 9], [0] * 3, [0.0] * 3))
    batch = to_batch(episodes, 0, 1.0, policy.device)
    values, after = values_all(policy, batch, budget)
    known = policy.evaluate(batch, {"values"}).values
    assert known is not None
    torch.testing.assert_close(values, known.detach(), atol=1e-5, rtol=1e-5)
    goes_on = [e.stop in ("max_turns", "truncated") for e in episodes]
    expected = [value_of(policy, e.tokens) if on else 0.0 for e, on in zip(episodes, goes_on)]
    assert sum(goes_on) == 2 and after.tolist() == pytest.approx(expected, abs=1e-4)


def test_after_a_full_context_there_is_no_value() -> None:
    episodes = random_episodes((1, 1), turns=1)
    for episode in episodes:
        episode.stop = StopReason.TRUNCATED
    episodes[1].segments[0].tokens = episodes[1].segments[0].tokens[:1]
    episodes[1].segments[0].action_mask, episodes[1].segments[0].behaviour_logp = [0], [0.0]
    sizes = [len(e.tokens) for e in episodes]
    policy = policy_with_values("gpt2", context=max(sizes))
    after = values_all(policy, to_batch(episodes, 0, 1.0, policy.device), 8192)[1]
    assert [bool(v) for v in after] == [n < max(sizes) for n in sizes] and len(set(sizes)) == 2


class Silent(SingleTurn):
    """Pays nothing and never ends."""

    def step(self, segment: Segment) -> StepResult:
        return StepResult([Segment("user", "?")])


class Watched(GAE):
    """GAE that keeps what it was given."""

    seen: ClassVar[list[TokenBatch]] = []

    def __call__(self, batch: TokenBatch) -> Tensor:
        self.seen.append(batch)
        return super().__call__(batch)


@pytest.mark.slow
@pytest.mark.parametrize(("world", "turns", "goes_on"), [(Silent, 2, True), (SingleTurn, 1, False)])
def test_the_loop_asks_the_critic_what_follows(world: type[SingleTurn], turns: int, goes_on: bool) -> None:
    Watched.seen.clear()
    method = get_method("ppo").replace(
        experience=Groups(size=2), problems=3, advantages=Watched(gamma=1.0, standardize=False)
    )
    loop = make_loop(method, Toy(world=world, max_turns=turns, max_tokens=3), policy_with_values())
    loop.step()
    (batch,) = Watched.seen
    assert batch.next_values is not None and batch.values is not None
    assert batch.truncated.all() == goes_on == bool(batch.next_values.all()) and batch.next_values.any() == goes_on
    last = method.advantages.returns(batch)[:, 1:][batch.action_mask[:, 1:] & ~batch.action_mask.roll(-1, 1)[:, 1:]]
    if goes_on:  # nothing was ever paid: the target of the last token is the value that follows
        torch.testing.assert_close(last.view(len(batch), turns)[:, -1], batch.next_values, atol=1e-5, rtol=1e-5)
