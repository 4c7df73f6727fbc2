"""AEPO: hysteresis on entropy, and what is left of the gradient on either side of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.errors import ConfigError
from etude.core.registry import get_method
from etude.core.rows import to_batch
from etude.experience.groups import Groups
from etude.objectives.policy_gradient import PolicyGradient
from etude.runs.training import compose_method
from etude.token_weights.band import AEPO, SureNegatives
from etude.token_weights.sign import PositiveOnly
from language_toys import gradients, make_loop, random_episodes

pytestmark = pytest.mark.usefixtures("one_thread")
ON_POLICY: Any = get_method("grpo").replace(
    objective=PolicyGradient(), aggregation="token-mean", experience=Groups(size=4), problems=3,
    optimizer=get_method("grpo").optimizer.replace(clip_norm=None),  # type: ignore[attr-defined]
)  # fmt: skip
TIMINGS = ("seconds", "tokens_per_second")


def gradient(*parts: Any) -> dict[str, torch.Tensor]:
    loop = make_loop(ON_POLICY.replace(token_weights=parts))
    loop.step()
    return gradients(loop.policy)


def test_the_flag_goes_up_above_the_band_and_down_below_it() -> None:
    """Row qwenlong-l1-5, identity 3; at an end itself nothing changes."""
    band = AEPO(low=0.1, high=0.4).bind()
    assert [band.masks(h) for h in (0.1, 0.5, 0.3, 0.05, 0.3)] == [False, True, True, False, False]
    assert [band.masks(h) for h in (0.4, 0.41, 0.1, 0.09)] == [False, True, True, False]
    with pytest.raises(ConfigError, match="low must be at most high"):
        AEPO(low=0.5, high=0.4)


def test_without_an_upper_end_it_changes_nothing() -> None:
    """Identity 2, flag False."""
    plain, banded = gradient(), gradient(AEPO(low=0.0, high=1e9))
    assert all(torch.equal(banded[name], g) for name, g in plain.items())


def test_with_the_flag_up_only_what_did_better_is_learned() -> None:
    """Identity 2, flag True: the gradient of -sum over A > 0 of A log pi."""
    positive, banded = gradient(PositiveOnly()), gradient(AEPO(low=0.0, high=0.0))
    for name, g in positive.items():
        torch.testing.assert_close(banded[name], g, atol=1e-7, rtol=1e-5)
    assert any(not torch.allclose(banded[name], g, atol=1e-6) for name, g in gradient().items())


def rows() -> tuple[TokenBatch, TokenLogProbs]:
    """Three completions of 2, 4 and 2 tokens, whose mean entropies are 0.2, 0.6 and 0.1."""
    batch = to_batch(random_episodes((1, 1, 1), low=2, high=2), 0, 1.0, torch.device("cpu"))
    mask = torch.zeros_like(batch.action_mask)
    mask[0, 2:4], mask[1, 2:6], mask[2, 2:4] = True, True, True
    entropy = torch.zeros(mask.shape)
    entropy[0, 2:4], entropy[1, 2:6] = torch.tensor([0.1, 0.3]), torch.tensor([0.3, 0.9, 0.6, 0.6])
    entropy[2, 2:4] = 0.1
    advantages = torch.tensor([[1.0], [-1.0], [-0.5]]) * mask
    return batch.replace(action_mask=mask, advantages=advantages), TokenLogProbs(torch.zeros(mask.shape), entropy)


@pytest.fixture
def wide() -> tuple[TokenBatch, TokenLogProbs]:
    batch, policy = rows()
    assert batch.tokens.shape[1] >= 6
    return batch, policy


def test_entropy_is_a_mean_of_means(wide: tuple[TokenBatch, TokenLogProbs]) -> None:
    batch, policy = wide
    torch.testing.assert_close(AEPO().entropy(batch, policy), torch.tensor([0.2, 0.6, 0.1]))
    for high, masked in ((0.299, True), (0.301, False)):  # the mean over tokens would be 0.375
        part = AEPO(low=0.0, high=high).bind()
        kept = part(batch, policy)[:, 2:4].bool().all(1).tolist()
        assert kept == ([True, False, False] if masked else [True, True, True])
        assert part.state["masks"] is masked


def test_written_rows_count_and_say_nothing(wide: tuple[TokenBatch, TokenLogProbs]) -> None:
    batch, policy = wide
    batch = batch.replace(written=torch.tensor([False, True, False]))
    assert not AEPO(low=0.0, high=0.16).bind().masks(0.15)
    part = AEPO(low=0.0, high=0.16).bind()
    assert bool((part(batch, policy) == 1).all())  # 0.15, not 0.3
    part = AEPO(low=0.0, high=0.14).bind()
    assert part(batch, policy)[:, 2].tolist() == [1.0, 1.0, 0.0]


def test_undecided_tokens_or_completions_are_not_punished(wide: tuple[TokenBatch, TokenLogProbs]) -> None:
    batch, policy = wide
    assert SureNegatives(limit=0.5)(batch, policy)[1, 2:6].tolist() == [1.0, 0.0, 0.0, 0.0]
    whole = SureNegatives(limit=0.5, whole=True)(batch, policy)
    assert whole[:, 2].tolist() == [1.0, 0.0, 1.0]
    assert bool((SureNegatives(limit=0.95)(batch, policy) == 1).all())


@pytest.mark.parametrize("base", ["rloo", "dapo"])
def test_it_stacks_and_goes_on_to_the_same_numbers(base: str, tmp_path: Path) -> None:
    fields = ["problems=2", "experience.size=4", "token_weights.aepo.low=1.0", "token_weights.aepo.high=1.2"]
    method = compose_method(base, fields, ["aepo"])
    assert [type(part) for part in method.slots()["token_weights"]] == [AEPO]
    loop = make_loop(method, steps=3)
    loop.step()
    loop.save(tmp_path)
    rest = [loop.step().metrics for _ in range(2)]
    other = make_loop(method, steps=3)
    other.load(tmp_path)
    for line in rest:
        again = other.step().metrics
        assert {k: v for k, v in again.items() if not k.startswith(TIMINGS)} == {
            k: v for k, v in line.items() if not k.startswith(TIMINGS)
        }
    assert "tokens_kept/aepo" in rest[0]
