"""Several models of one run: each its own weights, what none of them trains shared, all with the same tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from etude.core.errors import ConfigError
from etude.policies.adapters import Adapter
from etude.policies.byte_tokenizer import build_tokenizer
from etude.policies.ensemble import beside, twin
from etude.policies.language import LanguagePolicy
from etude.policies.word_tokenizer import build_word_tokenizer
from language_toys import random_batch, random_model, random_policy


def pointers(policy: LanguagePolicy, trained: bool) -> set[int]:
    return {p.data_ptr() for p in policy.model.parameters() if p.requires_grad == trained}


def test_a_twin_says_the_same_by_weights_of_its_own() -> None:
    first = random_policy()
    other, batch = twin(first), random_batch()
    assert torch.equal(first.evaluate(batch).logp, other.evaluate(batch).logp)
    assert not pointers(first, trained=True) & pointers(other, trained=True)
    assert other.tokenizer is first.tokenizer and other.masters is not first.masters


@pytest.mark.slow
def test_adapters_share_their_base(tmp_path: Path) -> None:
    random_model().save_pretrained(tmp_path)
    build_tokenizer(256).save_pretrained(tmp_path)
    first = LanguagePolicy.load(str(tmp_path), device="cpu", adapter=Adapter())
    other = beside(first, "critic")
    assert pointers(first, trained=False) == pointers(other, trained=False)
    assert pointers(first, trained=True) and not pointers(first, trained=True) & pointers(other, trained=True)


@pytest.mark.slow
def test_a_start_of_other_tokens_is_refused(tmp_path: Path) -> None:
    random_model().save_pretrained(tmp_path / "alike")
    build_tokenizer(256).save_pretrained(tmp_path / "alike")
    assert beside(random_policy(), "critic", str(tmp_path / "alike")).version == 0
    random_model().save_pretrained(tmp_path / "other")
    build_word_tokenizer("cues", 128).save_pretrained(tmp_path / "other")
    with pytest.raises(ConfigError, match=r"model 'critic' \(.*other\) has other tokens than the run's own \(\d+ and"):
        beside(random_policy(), "critic", str(tmp_path / "other"))
