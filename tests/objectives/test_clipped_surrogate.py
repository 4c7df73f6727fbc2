"""PPO's surrogate: when the clip removes the gradient, and what it can never do."""

from __future__ import annotations

import pytest
import torch

from etude.objectives.policy_gradient import ClippedSurrogate, PolicyGradient


def cases() -> tuple[torch.Tensor, torch.Tensor]:
    ratio = torch.tensor([0.1, 0.79, 0.81, 1.0, 1.1, 1.27, 1.29, 4.0], dtype=torch.float64)
    grid = torch.cartesian_prod(ratio, torch.tensor([-2.0, -0.5, 0.0, 0.5, 3.0], dtype=torch.float64))
    return grid[:, 0], grid[:, 1]


def loss_and_gradient(make_batch, logprobs, low: float, high: float):
    ratio, advantage = cases()
    batch = make_batch(torch.ones(1, len(ratio)), advantages=advantage[None])
    said = logprobs(ratio.log()[None])
    said.logp.requires_grad_(True)
    loss = ClippedSurrogate(low=low, high=high)(batch, said)
    (gradient,) = torch.autograd.grad(loss.sum(), said.logp)
    return ratio, advantage, loss.detach()[0], gradient[0]


def test_the_gradient_is_zero_exactly_where_the_clip_is_on_the_wrong_side(make_batch, logprobs) -> None:
    ratio, advantage, _, gradient = loss_and_gradient(make_batch, logprobs, 0.2, 0.28)
    off = ((advantage > 0) & (ratio > 1.28)) | ((advantage < 0) & (ratio < 0.8)) | (advantage == 0)
    assert torch.equal(gradient == 0, off)
    torch.testing.assert_close(gradient[~off], (-ratio * advantage)[~off])


def test_the_surrogate_is_never_above_the_unclipped_one(make_batch, logprobs) -> None:
    ratio, advantage, loss, _ = loss_and_gradient(make_batch, logprobs, 0.2, 0.28)
    assert (-loss <= ratio * advantage + 1e-12).all()


def test_min_identity(make_batch, logprobs) -> None:
    ratio, advantage, loss, _ = loss_and_gradient(make_batch, logprobs, 0.2, 0.28)
    clipped = ratio.clamp(0.8, 1.28)
    expected = ratio * advantage - torch.relu((ratio - clipped) * advantage)
    torch.testing.assert_close(-loss, expected, atol=1e-12, rtol=0)


def test_on_fresh_samples_the_gradient_is_the_policy_gradient(make_batch, logprobs) -> None:
    logp = torch.tensor([[-0.3, -2.0, -1.1]], dtype=torch.float64)
    batch = make_batch(torch.ones(1, 3), behaviour_logp=logp, advantages=[[0.5, -2.0, 1.5]])
    gradients = []
    for objective in (ClippedSurrogate(), PolicyGradient()):
        said = logprobs(logp.clone())
        said.logp.requires_grad_(True)
        gradients.append(torch.autograd.grad(objective(batch, said).sum(), said.logp)[0].tolist())
    assert gradients[0] == gradients[1] == [[-0.5, 2.0, -1.5]]


def test_reported_clip_fraction_counts_tokens_without_gradient(make_batch, logprobs) -> None:
    batch = make_batch(torch.ones(1, 4), advantages=[[1.0, 1.0, -1.0, -1.0]])
    said = logprobs(torch.tensor([[1.5, 0.5, 1.5, 0.5]], dtype=torch.float64).log())
    assert ClippedSurrogate().metrics(batch, said)["clip_fraction"].tolist() == [[1, 0, 0, 1]]


@pytest.mark.parametrize("wrong", [{"low": 0.0}, {"low": 1.0}, {"high": 0.0}])
def test_ranges(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"must be"):
        ClippedSurrogate(**wrong)
