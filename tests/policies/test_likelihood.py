"""What models say of given texts, against the model's own forward, one text at a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from etude.core.episodes import Episode
from etude.core.errors import ConfigError, DataError
from etude.core.registry import get_method
from etude.core.slots import Context, Reward
from etude.experience.groups import Groups
from etude.policies.language import LanguagePolicy
from etude.policies.texts.likelihood import logp
from etude.policies.texts.models import CurrentPolicy, KeptReference, Model, SavedModel
from etude.references.frozen import MovingAverage, Periodic
from language_toys import KINDS, VOCABULARY, make_loop, random_policy, random_prompts

CONTEXTS = [*random_prompts(5, low=2, high=20), [7, 8, 9], [7, 8, 9]]
TEXTS = [*random_prompts(5, seed=1, low=1, high=6), [11, 12], [11, 12]]


def alone(model: Any, context: list[int], text: list[int], temperature: float = 1.0) -> list[float]:
    """log p of each token of the text, by one forward of this one row without padding."""
    with torch.no_grad():
        logits = model(torch.tensor([[*context, *text]])).logits[0].double() / temperature
    table = logits - logits.exp().sum(-1, keepdim=True).log()
    return [float(table[len(context) + i - 1, t]) for i, t in enumerate(text)]


def padded(rows: list[list[float]]) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([[*row, *[0.0] * (width - len(row))] for row in rows], dtype=torch.float64)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("budget", [8192, 40])
def test_the_likelihood_is_the_model_s_own(kind: str, budget: int) -> None:
    policy = random_policy(kind, dtype=torch.float64)
    found = logp(CurrentPolicy(), CONTEXTS, TEXTS, policy, budget=budget)
    expected = padded([alone(policy.model, c, t) for c, t in zip(CONTEXTS, TEXTS)])
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=0)
    assert not found.requires_grad


def test_it_follows_the_temperature() -> None:
    policy = random_policy(dtype=torch.float64)
    found = logp(CurrentPolicy(), CONTEXTS, TEXTS, policy, temperature=0.7)
    expected = padded([alone(policy.model, c, t, 0.7) for c, t in zip(CONTEXTS, TEXTS)])
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=0)


def test_the_likelihoods_of_all_next_tokens_sum_to_one() -> None:
    policy = random_policy(dtype=torch.float64)
    found = logp(CurrentPolicy(), [[5, 6, 7]] * VOCABULARY, [[v] for v in range(VOCABULARY)], policy)
    assert found.exp().sum().item() == pytest.approx(1, abs=1e-12)


def test_an_empty_text_is_certain() -> None:
    policy = random_policy()
    assert logp(CurrentPolicy(), [[5], [5, 6]], [[], [7]], policy)[0].tolist() == [0.0]
    assert logp(CurrentPolicy(), [[5], [6]], [[], []], policy).shape == (2, 0)


def test_equal_pairs_are_looked_at_once() -> None:
    policy, seen = random_policy(), []
    evaluate = policy.evaluate
    policy.evaluate = lambda batch, needs=(): (seen.append(len(batch)), evaluate(batch, needs))[1]  # type: ignore[method-assign]
    logp(CurrentPolicy(), [[5, 6]] * 8, [[7]] * 8, policy)
    assert seen == [1]


def test_a_gradient_is_there_when_it_is_asked_for() -> None:
    policy = random_policy(dtype=torch.float64)
    found = logp(CurrentPolicy(), CONTEXTS, TEXTS, policy, gradient=True)
    found.sum().backward()
    ours = [p.grad.clone() for p in policy.model.parameters()]
    policy.model.zero_grad()
    for context, text in zip(CONTEXTS, TEXTS):
        table = policy.model(torch.tensor([[*context, *text]])).logits[0].log_softmax(-1)
        sum(table[len(context) + i - 1, t] for i, t in enumerate(text)).backward()
    for mine, parameter in zip(ours, policy.model.parameters()):
        torch.testing.assert_close(mine, parameter.grad, atol=1e-8, rtol=1e-8)
    for other in (KeptReference(), SavedModel(model="tiny")):
        with pytest.raises(ConfigError, match="is not what is trained"):
            logp(other, CONTEXTS, TEXTS, policy, gradient=True)


def test_what_does_not_fit_the_window_is_refused() -> None:
    policy = random_policy(context=16)
    assert logp(CurrentPolicy(), [[5] * 14], [[6, 7]], policy).shape == (1, 2)
    with pytest.raises(DataError, match=r"context of 15 tokens and a text of 2 do not fit the model's window of 16"):
        logp(CurrentPolicy(), [[5] * 15], [[6, 7]], policy)
    with pytest.raises(DataError, match="one token at least"):
        logp(CurrentPolicy(), [[]], [[6]], policy)


def test_the_reference_is_what_was_kept() -> None:
    """The first policy, until it moves: then a mixture of the weights of both."""
    policy, first = random_policy(dtype=torch.float64), random_policy(dtype=torch.float64)
    policy.keep_reference()
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(0.1 * torch.ones_like(parameter))
    before = padded([alone(first.model, c, t) for c, t in zip(CONTEXTS, TEXTS)])
    torch.testing.assert_close(logp(KeptReference(), CONTEXTS, TEXTS, policy), before, atol=1e-9, rtol=0)
    policy.move_reference(0.25)
    with torch.no_grad():
        for mine, now in zip(first.model.parameters(), policy.model.parameters()):
            mine.copy_(0.75 * mine + 0.25 * now)
    mixed = padded([alone(first.model, c, t) for c, t in zip(CONTEXTS, TEXTS)])
    torch.testing.assert_close(logp(KeptReference(), CONTEXTS, TEXTS, policy), mixed, atol=1e-9, rtol=0)


def test_a_saved_model_is_read_from_its_folder(tmp_path: Path) -> None:
    saved, policy = random_policy(seed=3), random_policy(seed=4)
    saved.save(tmp_path / "model")
    part = SavedModel(model=str(tmp_path / "model")).bind()
    expected = padded([alone(saved.model, c, t) for c, t in zip(CONTEXTS, TEXTS)])
    torch.testing.assert_close(logp(part, CONTEXTS, TEXTS, policy), expected.float(), atol=1e-4, rtol=1e-4)
    assert part.speaker(policy) is part.speaker(policy)


def test_a_model_of_other_tokens_is_refused() -> None:
    policy = LanguagePolicy.load("tiny", device="cpu")
    policy.tokenizer.add_tokens(["<other>"])
    with pytest.raises(ConfigError, match="other tokens than the policy"):
        logp(SavedModel(model="tiny").bind(), [[5]], [[6]], policy)


class AsksTheReference(Reward):
    """What the reference thinks of a 7 after the completion."""

    asked: Model = KeptReference()

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float]:
        return logp(self.asked, [e.tokens for e in episodes], [[7]] * len(episodes), context.policy)[:, 0].tolist()


@pytest.mark.parametrize(
    ("reference", "moves"), [(None, 0.0), (Periodic(every=1), 1.0), (MovingAverage(rate=0.5), 0.5)]
)
def test_a_part_that_asks_the_reference_has_one_kept(reference: Any, moves: float) -> None:
    """`needs = {reference}` alone keeps it, and the method's slot moves it."""
    method: Any = get_method("grpo").replace(rewards=(AsksTheReference(),), reference=reference)
    loop = make_loop(method.replace(experience=Groups(size=3, max_tokens=4)), steps=2)
    assert loop.policy.reference is not None
    begun = [p.clone() for p in loop.policy.reference.parameters()]
    loop.step()
    pairs = zip(begun, loop.policy.reference.parameters(), loop.policy.model.parameters())
    for old, kept, now in pairs:
        torch.testing.assert_close(kept, old + moves * (now - old))
