"""Parts that change scores: what they are by hand, over several batches, and what changes nothing."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.edit import stack
from etude.core.episodes import Episode, Problem, Segment, StopReason
from etude.core.errors import ConfigError
from etude.core.registry import compositions, files, get_method
from etude.core.rows import to_batch
from etude.core.slots import Context
from etude.core.stages import composed
from etude.core.streams import Stream
from etude.evaluation.small_batch import small_tokens
from etude.methods.preference.directional_stimulus_prompting.masked import GentleKLPenalty
from etude.methods.preference.text2grad.parts import AdaptiveFullKLPenalty
from etude.objectives.links import ContrastiveReward, Link, Logistic, SquaredToConstant, SquaredToReward
from etude.objectives.pairs import BehaviourPolicy, Denominator, LogRatio, PairLoss, ReferencePolicy
from etude.references.frozen import Frozen
from etude.regularizers.entropy import EntropyBonus
from etude.regularizers.kl import KLToReference
from etude.rewards.control import (
    AffineScores,
    ClippedScores,
    MissingEnd,
    NormalizedScores,
    PromptZScores,
    RunningScores,
    ScaledScores,
)
from etude.rewards.kl import AdaptiveKLPenalty, KLPenalty
from etude.rewards.outcome import TaskReward
from etude.rewards.scoring import score

PENALTIES = (KLPenalty(), AdaptiveKLPenalty(), GentleKLPenalty(), AdaptiveFullKLPenalty())
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
@pytest.mark.parametrize("paid", PENALTIES)
def test_a_divergence_from_the_reference_counts_once(paid: KLPenalty, held: KLToReference) -> None:
    """In the reward or in the loss; what holds the policy near other things is no second time."""
    grpo = get_method("grpo").replace(reference=Frozen(), rewards=(TaskReward(), paid))
    grpo.replace(regularizers=(EntropyBonus(),)).check()
    with pytest.raises(ConfigError, match=f"{type(paid).__name__} takes the divergence .* count twice: leave one"):
        grpo.replace(regularizers=(EntropyBonus(), held)).check()
    assert any(
        "count twice" in sentence for sentence in stack(get_method("ppo-rlhf"), ["kl-to-reference"]).objections()
    )


@pytest.mark.parametrize("name", ["directional-stimulus-prompting", "text2grad", "rto", "ppo-rlhf"])
@pytest.mark.parametrize("other", PENALTIES)
def test_a_divergence_is_taken_off_the_reward_once(name: str, other: KLPenalty) -> None:
    """Whatever kinds the two penalties are of, they are of one reference."""
    method = get_method(name)
    own = next(type(part).__name__ for part in method.slots()["rewards"] if isinstance(part, KLPenalty))
    assert not _twice(method)
    both = f"2 rewards do ({own} and {type(other).__name__}), so that it would count twice: leave one of them out."
    assert both in _twice(method.replace(rewards=(*method.slots()["rewards"], other)))[0]


RATIOS: dict[str, tuple[Denominator, ...]] = {
    "reference": (ReferencePolicy(),),
    "both": (ReferencePolicy(weight=0.5), BehaviourPolicy(weight=0.5)),
    "sampler": (BehaviourPolicy(),),
    "none": (),
}


@pytest.mark.parametrize("paid", PENALTIES)
@pytest.mark.parametrize("over", RATIOS)
@pytest.mark.parametrize("link", [ContrastiveReward(), SquaredToReward(), Logistic(), SquaredToConstant()])
def test_a_link_that_regresses_log_ratios_to_rewards_holds_the_distance(link: Link, over: str, paid: KLPenalty) -> None:
    """Its optimum is ref exp(r / beta) already; a link that only asks which is better reads no distance in rewards."""
    rebel = get_method("rebel")
    objective = PairLoss(link=link, of=LogRatio(denominators=RATIOS[over]))
    found = _twice(rebel.replace(rewards=(TaskReward(), paid), reference=Frozen(), objective=objective))
    refused = over in ("reference", "both") and isinstance(link, ContrastiveReward | SquaredToReward)
    assert bool(found) == refused
    if refused:
        assert f"objective.link={link.name} makes log(pi / reference) equal to rewards" in found[0]


def test_copg_on_its_own_samples_takes_no_penalty() -> None:
    copg = get_method("copg").replace(experience=get_method("rebel").slots()["experience"])
    scored = copg.replace(rewards=(TaskReward(),))
    scored.check()
    with pytest.raises(ConfigError, match=r"link=contrastive-reward makes .* count twice: leave one"):
        stack(scored, ["kl-penalty"]).check()


@pytest.mark.first
@pytest.mark.slow
def test_no_shipped_method_counts_a_divergence_twice() -> None:
    every = [method for name in sorted(files("methods")) for method in compositions(name)]
    made = [own for method in every for own in (method, *method.made_of(), *composed(method))]
    assert sum(isinstance(part, KLPenalty) for own in made for part in own.parts().values()) > 20
    assert [own.id for own in made if _twice(own)] == []


def _twice(method: Any) -> list[str]:
    return [sentence for sentence in method.objections() if "count twice" in sentence]


# What was cut


def played(stop: StopReason, number: int, *paid: float) -> Episode:
    """An episode with a row for each of these payments, of one sampled token behind one that was shown."""
    turns = [
        [Segment("user", "?", [4], [0], [0.0]), Segment("assistant", "x", [5], [1], [0.0], reward=r)] for r in paid
    ]
    problem = Problem(f"p/{number}", "?")
    said = [segment for turn in turns for segment in turn]
    return Episode(problem, said, number, stop=stop, views=turns if len(turns) > 1 else [])


def missing(*episodes: Episode) -> TokenBatch:
    batch = to_batch(episodes, 0, 1.0, torch.device("cpu"))
    return score(batch, (TaskReward(), MissingEnd(value=-1.0)), Context(None, None, Stream(0)))


def test_what_was_cut_is_worth_the_same_whatever_was_paid_and_the_rest_what_it_was() -> None:
    cut, ended, going = StopReason.MAX_TOKENS, StopReason.TERMINATED, StopReason.PAUSED
    batch = missing(
        played(cut, 0, 0.75), played(ended, 1, 0.25, 0.5), played(going, 2, 0.0, 0.0), played(ended, 3, 2.0)
    )
    assert batch.episode is not None and batch.episode.tolist() == [0, 1, 1, 2, 2, 3]
    assert batch.scores.tolist() == [-1.0, 0.75, 0.75, 0.0, 0.0, 2.0]
    assert batch.rewards.sum(1).tolist() == [-1.0, 0.75, 0.5, 0.0, 0.0, 2.0]  # of several rows what is still to come
    assert not batch.rewards[~batch.action_mask].any()


def test_an_episode_of_several_rows_that_was_cut_is_worth_it_once() -> None:
    batch = missing(played(StopReason.MAX_TOKENS, 0, 0.25, 0.5, 0.0), played(StopReason.CONTEXT_OVERFLOW, 1, 4.0))
    assert batch.scores.tolist() == [-1.0] * 3 + [-1.0]
    assert batch.rewards.sum(1).tolist() == [-1.0, -1.25, -1.75, -1.0]
