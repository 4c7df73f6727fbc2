"""k1, k2, k3: values by hand, and expectations by enumeration of a softmax policy."""

from __future__ import annotations

import math

import pytest
import torch

from etude.regularizers.kl import KLToReference, kl_estimate

THETA = torch.tensor([0.3, -1.2, 0.8, 0.1], dtype=torch.float64)
REFERENCE = torch.tensor([0.1, 0.4, -0.5, 0.0], dtype=torch.float64).log_softmax(0)


def expectation(estimator: str, theta: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """E over outcomes of the estimate, and of its gradient as a loss (samples held fixed)."""
    logp = theta.log_softmax(0)
    p = logp.exp().detach()
    estimate = kl_estimate(logp, REFERENCE, estimator)
    (gradient,) = torch.autograd.grad((p * estimate).sum(), theta)
    return (p * estimate).sum().detach(), gradient


def exact() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """KL(pi || ref), its gradient, and the gradient of KL(ref || pi)."""
    theta = THETA.clone().requires_grad_(True)
    logp = theta.log_softmax(0)
    reverse, forward = (logp.exp() * (logp - REFERENCE)).sum(), (REFERENCE.exp() * (REFERENCE - logp)).sum()
    return (
        reverse.detach(),
        torch.autograd.grad(reverse, theta, retain_graph=True)[0],
        torch.autograd.grad(forward, theta)[0],
    )


def test_values_by_hand() -> None:
    logp, ref = torch.tensor(-1.0, dtype=torch.float64), torch.tensor(-1.5, dtype=torch.float64)
    assert kl_estimate(logp, ref, "k1").item() == 0.5
    assert kl_estimate(logp, ref, "k2").item() == 0.125
    assert kl_estimate(logp, ref, "k3").item() == pytest.approx(math.exp(-0.5) - 0.5, abs=1e-15)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_unbiased_in_value(estimator: str) -> None:
    found, _ = expectation(estimator, THETA.clone().requires_grad_(True))
    torch.testing.assert_close(found, exact()[0], atol=1e-12, rtol=0)


def test_what_each_gradient_is_the_gradient_of() -> None:
    _, reverse, forward = exact()
    gradients = {k: expectation(k, THETA.clone().requires_grad_(True))[1] for k in ("k1", "k2", "k3")}
    torch.testing.assert_close(gradients["k1"], torch.zeros(4, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(gradients["k2"], reverse, atol=1e-12, rtol=0)
    torch.testing.assert_close(gradients["k3"], forward, atol=1e-12, rtol=0)


def test_k3_is_never_negative_and_zero_at_the_reference(make_batch, logprobs) -> None:
    batch = make_batch(torch.ones(1, 3), reference_logp=[[-1.0, -2.0, -0.5]])
    found = KLToReference(coefficient=2.0)(batch, logprobs([[-1.0, -1.0, -3.0]]))
    assert found[0, 0] == 0
    assert (found[0, 1:] > 0).all()
