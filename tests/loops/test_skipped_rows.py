"""What the metrics of an update are averages of, where rows without an advantage take no forward pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from etude.core.batches import TokenBatch
from etude.core.method import Method
from etude.experience.groups import Groups
from etude.loops.update import Tally, Updater
from etude.methods.rlvr.grpo import grpo
from etude.regularizers.kl import KLToReference
from etude.token_weights.entropy import HighEntropyTokens
from language_toys import random_batch, random_policy

METHOD = grpo.replace(experience=Groups(size=4), problems=3)


def reported(method: Method, advantages: list[float]) -> tuple[TokenBatch, dict[str, float], Any]:
    """Metrics of an update off the policy that sampled, for rows with these advantages; the policy it was made at."""
    batch = random_batch((4, 3, 2))
    policy = random_policy(dtype=torch.float64)
    batch.reference_logp = batch.behaviour_logp
    batch.behaviour_logp = (policy.evaluate(batch).logp.detach() - 0.5) * batch.action_mask  # every ratio is e^0.5
    batch = batch.replace(advantages=torch.tensor(advantages)[:, None] * batch.action_mask)
    tally = Tally()
    Updater(policy, method, 1, 100_000, 9).accumulate(method, batch, False, tally)
    return batch, tally.means(), policy


ADVANTAGES = [1.0, 0.0, 1.0, 0.0, -1.0, 0.0, 0.0, 0.0, 1.0]


@pytest.mark.slow
def test_the_clip_fraction_is_of_all_action_tokens() -> None:
    """A ratio of e^0.5 is clipped where the advantage is positive; rows that are skipped have nothing to clip."""
    batch, found, _ = reported(METHOD, ADVANTAGES)
    clipped = batch.action_counts[torch.tensor(ADVANTAGES) > 0].sum() / batch.action_counts.sum()
    assert found["clip_fraction"] == pytest.approx(float(clipped), abs=1e-6)
    assert found["rows_skipped"] == pytest.approx(5 / 9)
    kept = reported(METHOD.replace(regularizers=(KLToReference(),)), ADVANTAGES)[1]
    assert kept["clip_fraction"] == pytest.approx(found["clip_fraction"], abs=1e-6) and kept["rows_skipped"] == 0


def test_the_clip_removes_no_gradient_that_token_weights_removed() -> None:
    batch, found, policy = reported(METHOD.replace(token_weights=(HighEntropyTokens(share=0.3),)), ADVANTAGES)
    entropy = policy.evaluate(batch, {"entropy"}).entropy[batch.action_mask]
    kept = batch.action_mask.clone()
    kept[batch.action_mask] = entropy >= entropy.quantile(0.7) - 1e-12
    rises = (torch.tensor(ADVANTAGES) > 0)[:, None] & batch.action_mask
    assert found["clip_fraction"] == pytest.approx(float((kept & rises).sum() / batch.action_mask.sum()), abs=1e-6)


def test_a_batch_without_any_advantage_clips_nothing() -> None:
    assert reported(METHOD, [0.0] * 9)[1]["clip_fraction"] == 0


@pytest.mark.slow
def test_what_takes_a_forward_pass_is_named_for_the_rows_that_had_one() -> None:
    """k3 of log ratios of 0.5 everywhere; the name is the method's, however many rows a step skips."""
    wanted = float(torch.tensor(0.5).exp()) - 1 - 0.5
    for advantages in (ADVANTAGES, [1.0] * 9):
        found = reported(METHOD, advantages)[1]
        assert found["behaviour_kl/learned"] == pytest.approx(wanted, abs=1e-6) and "behaviour_kl" not in found
    found = reported(METHOD.replace(regularizers=(KLToReference(),)), ADVANTAGES)[1]
    assert found["behaviour_kl"] == pytest.approx(wanted, abs=1e-6) and "behaviour_kl/learned" not in found
