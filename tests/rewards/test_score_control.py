"""Parts that change scores: what they are by hand, over several batches, and what changes nothing."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from etude.core.edit import stack
from etude.core.errors import ConfigError
from etude.core.registry import get_method
from etude.evaluation.small_batch import small_tokens
from etude.references.frozen import Frozen
from etude.regularizers.entropy import EntropyBonus
from etude.regularizers.kl import KLToReference
from etude.rewards.control import (
    AffineScores,
    ClippedScores,
    NormalizedScores,
    PromptZScores,
    RunningScores,
    ScaledScores,
)
from etude.rewards.kl import AdaptiveKLPenalty, KLPenalty
from etude.rewards.outcome import TaskReward

BATCHES = ([1.0, 5.0, 2.5, -0.75, 4.0, 4.0], [0.5, 7.0, 9.0, -3.0, 0.0, 1.0], [2.0, 2.0, 2.0, 2.0, 2.0, 2.0])


def rows(scores: Any, **changes: Any) -> Any:
    """The six rows of the small batch, worth this much."""
    return small_tokens(frozenset())[0].replace(scores=torch.as_tensor(scores, dtype=torch.float64), **changes)


def over(part: RunningScores, batches: Any = BATCHES) -> list[Tensor]:
    bound = part.bind()
    return [bound.rescore(rows(scores)) for scores in batches]


def test_running_statistics_are_those_of_all_scores_so_far() -> None:
    """Against the mean and the deviation of everything at once."""
    so_far: list[float] = []
    for scores, normal, scaled in zip(BATCHES, over(NormalizedScores()), over(ScaledScores())):
        so_far += scores
        every, new = (torch.tensor(x, dtype=torch.float64) for x in (so_far, scores))
        torch.testing.assert_close(normal, (new - every.mean()) / every.std(correction=0), atol=1e-12, rtol=0)
        torch.testing.assert_close(scaled, new / every.std(correction=0), atol=1e-12, rtol=0)


@pytest.mark.parametrize(("a", "b"), [(3.0, -7.5), (0.01, 100.0)])
def test_affine_changes_of_the_reward_change_no_normalised_score(a: float, b: float) -> None:
    changed = over(NormalizedScores(), [[a * r + b for r in batch] for batch in BATCHES])
    for found, plain in zip(changed, over(NormalizedScores())):
        torch.testing.assert_close(found, plain, atol=1e-9, rtol=0)
    scaled = over(ScaledScores(), [[a * r for r in batch] for batch in BATCHES])
    for found, plain in zip(scaled, over(ScaledScores())):
        torch.testing.assert_close(found, plain, atol=1e-9, rtol=0)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e6])
def test_scores_that_have_all_been_equal_are_not_divided(value: float) -> None:
    """Of equal numbers rounding makes a deviation."""
    same = [[value] * 6] * 3
    assert all(x.tolist() == [0.0] * 6 for x in over(NormalizedScores(), same))
    assert all(x.tolist() == [value] * 6 for x in over(ScaledScores(), same))


def test_what_goes_on_later_and_later_rows_of_an_episode_do_not_count() -> None:
    """Rows 0 and 1 are one episode, worth 5; row 5 goes on later."""
    part = NormalizedScores().bind()
    later = torch.tensor([False] * 5 + [True])
    batch = rows([5.0, 5.0, 1.0, 3.0, 3.0, 0.0], unfinished=later, episode=torch.tensor([0, 0, 1, 2, 3, 4]))
    found = part.rescore(batch)
    assert part.state["count"] == 4 and part.state["mean"] == pytest.approx(3.0)
    assert part.state["squares"] == pytest.approx(8.0)
    assert found.tolist() == pytest.approx([2**0.5, 2**0.5, -(2**0.5), 0.0, 0.0, 0.0])


def test_a_restored_state_goes_on_to_the_same_scores() -> None:
    first = NormalizedScores().bind()
    first.rescore(rows(BATCHES[0]))
    other = NormalizedScores().bind()
    other.state.update(copy.deepcopy(first.state))
    assert torch.equal(first.rescore(rows(BATCHES[1])), other.rescore(rows(BATCHES[1])))


@pytest.mark.slow
def test_z_scores_of_a_prompt_ignore_what_the_prompt_is_paid() -> None:
    batch = rows(BATCHES[0])
    plain = PromptZScores(epsilon=0.0).rescore(batch)
    for group in (0, 1):
        own = plain[batch.group == group]
        assert own.mean() == pytest.approx(0, abs=1e-12) and own.std(correction=0) == pytest.approx(1)
    shifted = PromptZScores(epsilon=0.0).rescore(rows(batch.scores + 8.0 * batch.group))
    torch.testing.assert_close(shifted, plain, atol=1e-12, rtol=0)


def test_clips_and_affine_maps_stack() -> None:
    batch = rows([-4.0, 0.5, 3.0, 1.0, 2.0, -1.0])
    stacked = ClippedScores(low=-1, high=1).rescore(
        batch.replace(scores=AffineScores(scale=0.5, shift=-0.5).rescore(batch))
    )
    assert stacked.tolist() == [-1.0, -0.25, 1.0, 0.0, 0.5, -1.0]
    with pytest.raises(ConfigError, match="low must be below high"):
        ClippedScores(low=1, high=1)


@pytest.mark.parametrize(("target", "factor"), [(0.1, 1.2), (10.0, 0.8), (1 / 1.1, 1.1)])
def test_an_adaptive_coefficient_follows_the_divergence(target: float, factor: float) -> None:
    """Of six completions that are one nat away each: by at most a fifth, and in proportion near the target."""
    batch = rows(BATCHES[0])
    batch.reference_logp = batch.behaviour_logp - batch.action_mask / batch.action_counts[:, None]
    part = AdaptiveKLPenalty(coefficient=0.5, target=target, horizon=6).bind()
    first = part.shape(batch)
    torch.testing.assert_close(first.sum(1), torch.full((6,), -0.5))
    assert part.state["coefficient"] == pytest.approx(0.5 * factor, rel=1e-6)
    fixed = KLPenalty(coefficient=part.state["coefficient"])
    torch.testing.assert_close(part.shape(batch), fixed.shape(batch))


@pytest.mark.parametrize("held", [KLToReference(), KLToReference(estimator="k1", weighted=True)])
@pytest.mark.parametrize("paid", [KLPenalty(), AdaptiveKLPenalty()])
def test_a_divergence_from_the_reference_counts_once(paid: KLPenalty, held: KLToReference) -> None:
    """In the reward or in the loss; what holds the policy near other things is no second time."""
    grpo = get_method("grpo").replace(reference=Frozen(), rewards=(TaskReward(), paid))
    grpo.replace(regularizers=(EntropyBonus(),)).check()
    with pytest.raises(ConfigError, match=f"{type(paid).__name__} takes the divergence .* count twice: leave one"):
        grpo.replace(regularizers=(EntropyBonus(), held)).check()
    assert any(
        "count twice" in sentence for sentence in stack(get_method("ppo-rlhf"), ["kl-to-reference"]).objections()
    )
