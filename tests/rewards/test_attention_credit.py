"""A score spread by attention: shares that add up, against the model run on one row alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from etude.core.errors import ConfigError
from etude.core.rows import to_batch
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.experience.data import Pairs
from etude.policies.language import LanguagePolicy
from etude.rewards.attention import AttentionCredit, attended, spread
from etude.rewards.model import RewardModel, values
from language_toys import Toy, random_policy


class Paired(Toy):
    def problems(self, split: str) -> Any:
        for problem, texts in zip(made := super().problems(split), [("abcde", "?"), ("x", "yz!"), ("q", "")]):
            problem.info.update(zip(("chosen", "rejected"), texts))
        return made[:3]


@pytest.fixture(scope="module")
def scorer() -> LanguagePolicy:
    found = random_policy(seed=5)
    found.add_value_head()
    assert found.value_head is not None
    torch.nn.init.normal_(found.value_head.weight)
    return found


def test_shares_add_up_to_the_score() -> None:
    random = torch.Generator().manual_seed(0)
    mask = torch.tensor([[0, 1, 1, 0, 1], [0, 0, 1, 1, 0], [0, 1, 0, 0, 0]], dtype=torch.bool)
    attention = torch.rand(3, 5, generator=random, dtype=torch.float64)
    attention[1] = 0  # nothing of the answer was attended to
    scores = torch.tensor([2.5, -3.0, 0.75], dtype=torch.float64)
    found = spread(scores, attention, mask)
    torch.testing.assert_close(found.sum(1), scores, atol=1e-15, rtol=0)
    assert not found[~mask].any() and found[1].tolist() == [0, 0, 0, -3, 0]
    a = attention[0]
    assert found[0, 2].item() == pytest.approx(float(2.5 * a[2] / (a[1] + a[2] + a[4])), abs=1e-15)


def test_attention_is_that_of_the_state_that_is_scored(scorer: LanguagePolicy) -> None:
    """Row by row, without padding: last layer, from the state before the end token, the mean over heads."""
    context = Context(Paired(), scorer, Stream(0), max_tokens=8)
    batch = to_batch(Pairs().collect(Paired().problems("train"), context), 0, 1.0, scorer.device)
    part: Any = AttentionCredit(of=RewardModel(model="given", weight=0.5)).bind()
    part.of.made["scorer"] = scorer
    before = scorer.model.config._attn_implementation
    found, looked = part.shape_in(batch, context), attended(scorer, batch)
    assert scorer.model.config._attn_implementation == before
    said = torch.tensor(values(scorer, batch.episodes))
    torch.testing.assert_close(found.sum(1), 0.5 * said, atol=1e-6, rtol=0)
    plain: Any = random_policy(seed=5).model
    plain.set_attn_implementation("eager")
    for row in range(len(batch)):
        size, last = int(batch.attention_mask[row].sum()), int(batch.action_mask[row].nonzero().max())
        with torch.no_grad():
            out = plain(batch.tokens[row : row + 1, :size], output_attentions=True)
        weights = out.attentions[-1][0].mean(0)[last - 1]
        torch.testing.assert_close(looked[row, :size], weights, atol=1e-6, rtol=0)


def test_other_tokens_are_refused(scorer: LanguagePolicy) -> None:
    part: Any = AttentionCredit(of=RewardModel(model="given")).bind()
    part.of.made["scorer"] = SimpleNamespace(tokenizer=SimpleNamespace(get_vocab=lambda: {"other": 0}))
    with pytest.raises(ConfigError, match="pays the policy's tokens"):
        part.shape_in(None, Context(Paired(), scorer, Stream(0)))
    assert "no model to score with" in str(AttentionCredit().of.objection(None))
