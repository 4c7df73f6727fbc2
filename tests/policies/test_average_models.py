"""A model that is the average of others: its weights, what it says, where it can stand, and what is refused."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from etude.core.errors import ConfigError
from etude.policies.language import LanguagePolicy
from etude.policies.texts.likelihood import logp
from etude.policies.texts.models import AverageModel, SavedModel
from language_toys import random_prompts

CONTEXTS, TEXTS = random_prompts(4, low=3, high=8), random_prompts(4, seed=1, low=1, high=5)
pytestmark = pytest.mark.slow


@pytest.fixture
def folders(tmp_path: Path) -> tuple[str, str]:
    """Two models of one shape."""
    for name, seed in (("one", 1), ("two", 2)):
        policy = LanguagePolicy.load("blank:1x16x2", device="cpu")
        with torch.no_grad():
            for p in policy.model.parameters():
                p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(seed)) / 5)
        policy.save(tmp_path / name)
    return str(tmp_path / "one"), str(tmp_path / "two")


def said(model: AverageModel | SavedModel, policy: LanguagePolicy) -> torch.Tensor:
    return logp(model.bind(), CONTEXTS, TEXTS, policy)


def test_it_says_what_a_model_with_the_average_weights_says(folders: tuple[str, str], tmp_path: Path) -> None:
    policy = LanguagePolicy.load(folders[0], device="cpu")
    found = said(AverageModel(models=folders, weights=(3.0, 1.0)), policy)
    mixed, other = (LanguagePolicy.load(f, device="cpu") for f in folders)
    with torch.no_grad():
        for p, q in zip(mixed.model.parameters(), other.model.parameters(), strict=True):
            p.copy_(0.75 * p + 0.25 * q)
    mixed.save(tmp_path / "mixed")
    torch.testing.assert_close(found, said(SavedModel(model=str(tmp_path / "mixed")), policy))
    halves = (said(AverageModel(models=folders, weights=w), policy) for w in ((), (2.0, 2.0)))
    assert torch.equal(next(halves), next(halves)) and not torch.allclose(
        found, said(AverageModel(models=folders), policy)
    )


def test_with_all_weight_on_one_it_is_that_model_bit_for_bit(folders: tuple[str, str]) -> None:
    policy = LanguagePolicy.load(folders[0], device="cpu")
    for which, weights in enumerate(((1.0, 0.0), (0.0, 0.7))):
        own = SavedModel(model=folders[which])
        assert torch.equal(said(AverageModel(models=folders, weights=weights), policy), said(own, policy))
    same = AverageModel(models=(folders[1],) * 3)
    assert torch.equal(said(same, policy), said(SavedModel(model=folders[1]), policy))


def test_the_policy_and_the_models_stay_as_they_are(folders: tuple[str, str]) -> None:
    policy, before = LanguagePolicy.load(folders[0], device="cpu"), Path(folders[0], "model.safetensors").read_bytes()
    mark = policy.weights.mark()
    model = AverageModel(models=folders).bind()
    logp(model, CONTEXTS, TEXTS, policy)
    assert policy.weights.mark() == mark and Path(folders[0], "model.safetensors").read_bytes() == before
    assert model.speaker(policy) is model.speaker(policy) is not policy


def test_what_has_no_average_is_refused(folders: tuple[str, str], tmp_path: Path) -> None:
    policy = LanguagePolicy.load(folders[0], device="cpu")
    policy.tokenizer = copy.deepcopy(policy.tokenizer)
    wider = str(tmp_path / "wider")
    LanguagePolicy.load("blank:1x32x2", device="cpu").save(Path(wider))
    with pytest.raises(ConfigError, match=r"wider' has another shape than '.*one' .*no average"):
        AverageModel(models=(folders[0], wider)).bind().speaker(policy)
    policy.tokenizer.add_tokens(["<other>"])
    with pytest.raises(ConfigError, match="other tokens than the policy"):
        AverageModel(models=folders).bind().speaker(policy)
    for weights in ((1.0,), (1.0, -1.0), (0.0, 0.0)):
        with pytest.raises(ConfigError, match="a weight of at least 0 for each of its 2 models, and one above 0"):
            AverageModel(models=folders, weights=weights)
    assert "averages no models" in str(AverageModel().objection(None))  # type: ignore[arg-type]
