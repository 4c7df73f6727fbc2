"""The estimate of memory that is printed before a run."""

from __future__ import annotations

from etude.policies.language import LanguagePolicy
from etude.runtime import memory


def test_the_estimate_counts_four_copies_of_the_weights_and_the_cache() -> None:
    policy = LanguagePolicy.load("tiny")
    count, config = sum(p.numel() for p in policy.model.parameters()), policy.config
    model, cache = memory.estimate(policy, rows=10, length=50)
    assert model == 4 * 4 * count  # weights, gradients, two moments, in float32
    assert cache == 10 * 50 * config.num_hidden_layers * 2 * config.num_key_value_heads * config.head_dim * 4


def test_too_much_is_said_in_a_sentence(monkeypatch) -> None:
    policy = LanguagePolicy.load("tiny")
    assert "more than" not in memory.sentence(policy, 10, 50)
    monkeypatch.setattr(memory, "available", lambda: 1_000_000)
    assert "more than the 1 MB that are free" in memory.sentence(policy, 10, 50)
