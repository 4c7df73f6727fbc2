"""What waits for the device in an update, counted on a pretended one, so that it cannot come back."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from etude.core.complete import complete_token
from etude.core.rows import to_batch
from etude.core.streams import Stream
from etude.experience.groups import Groups
from etude.loops.agreement import gap_sums
from etude.loops.noise import Noise
from etude.loops.tally import Tally
from etude.loops.update import Updater
from etude.methods.rlvr.grpo import grpo
from etude.policies.language import LanguagePolicy
from etude.policies.micro_batches import micro_batches, sharing
from language_toys import random_batch, random_episodes, random_policy
from two_devices import mark
from waits import Waits

METHOD = complete_token(grpo.replace(problems=4, experience=Groups(size=4)))


def counted(policy: LanguagePolicy, budget: int) -> tuple[Counter[str], int]:
    """What waits in the second of two updates, and in how many micro-batches.

    Left out: torch's optimizer, which counts its steps on the host, and transformers, which looks at padding.
    """
    sharing(policy)  # a CPU asks once whether a model can attend to blocks
    with Waits() as waits:
        batch = to_batch(random_episodes((4, 4, 4, 4)), 0, 1.0, policy.device)
        advantages = torch.randn(16, 1, device=policy.device) * batch.action_mask
        updater = Updater(policy, METHOD, 10, budget, 16)
        for _ in range(2):
            with torch.no_grad():
                batch = batch.replace(behaviour_logp=policy.evaluate(batch).logp, advantages=advantages)
            waits.clear()
            updater.run(METHOD, batch, 0, Stream(0))
        found = Counter({k: n for k, n in waits.asked.items() if not k.endswith((" _apply", " computed"))})
        return found, len(list(micro_batches(policy, batch, budget)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_few_things_wait_in_an_update(kind: str) -> None:
    """Three for a micro-batch where there were nineteen, seventeen for an update where two were for each parameter."""
    (whole, one), (cut, many) = (counted(random_policy(kind), budget) for budget in (8192, 100))
    assert one == 1 and many > 2
    assert whole.total() <= 17, whole
    assert cut.total() - whole.total() <= 3 * (many - one), cut - whole


def test_what_is_reported_comes_at_once() -> None:
    with Waits() as waits:
        tally, values = Tally(), torch.arange(6.0, device="cpu").view(2, 3)
        for _ in range(3):
            tally.add_tensor("masked", values, values > 2)
            tally.add_tensor("rows", values[:, 0], values > 2)
            tally.add("here", 3.0, 2.0)
            tally.count("often")
        assert waits.asked.total() == 0
        assert tally.means() == {"masked": 4.0, "rows": 1.5, "here": 1.5, "often": 3.0}
        assert waits.asked.total() == 1


def test_what_is_not_asked_of_a_masked_value_does_not_matter() -> None:
    tally = Tally()
    tally.add_tensor(
        "x", torch.tensor([[1.0, torch.nan], [torch.inf, 3.0]]), torch.tensor([[True, False], [False, True]])
    )
    assert tally.means() == {"x": 2.0}


@pytest.mark.parametrize("truncated", [False, True])
def test_gaps_are_summed_as_if_they_were_taken_out(truncated: bool) -> None:
    batch, policy = random_batch(), random_policy()
    batch.written = torch.arange(len(batch)) % 3 == 0
    batch.version = torch.where((torch.arange(len(batch)) % 4 == 1)[:, None], 3, torch.zeros_like(batch.tokens))
    said = policy.evaluate(batch)
    counts = batch.action_mask & ~batch.written[:, None] & (batch.version == 0)  # rows of older weights do not
    gaps = (said.logp.double() - batch.behaviour_logp.double())[counts].detach()
    gaps = gaps.clamp(min=0) if truncated else gaps.abs()
    count, total, squares, most = gap_sums(batch, said, truncated, 0).tolist()
    assert count == len(gaps) and most == float(gaps.max())
    assert (total, squares) == pytest.approx((float(gaps.sum()), float((gaps**2).sum())), rel=1e-12)
    one, other = Noise(), Noise()
    one.observe(gaps)
    other.take(torch.tensor([count, total, squares], dtype=torch.float64))
    torch.testing.assert_close(one.sums, other.sums, rtol=1e-12, atol=0)


def test_the_noise_is_the_hosts() -> None:
    """Sums that were left on the device could not be added to it: every first update on a GPU failed."""
    with Waits():
        there, noise = torch.ones(3, device="cpu", dtype=torch.float64), Noise()
        with pytest.raises(AssertionError, match="on both devices"):
            noise.take(there)
        noise.take(mark(there.clone()))
