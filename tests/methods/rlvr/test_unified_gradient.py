"""The unified estimator's parts: what each is by hand, what reads the policy that sampled, what older runs wrote."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import etude
from etude.core.batches import TokenLogProbs
from etude.core.edit import set_value, set_values
from etude.core.errors import ConfigError
from etude.core.part import part_from_json
from etude.objectives.unified import (
    BehaviourDenominator,
    ClipMask,
    CurrentDenominator,
    Denominator,
    Hybrid,
    SequenceClipMask,
    SequenceDenominator,
    ShapedDenominator,
    StabilisingMask,
    UnifiedGradient,
    UnitDenominator,
    WeightClipMask,
)

OLD = [0.5, 0.25]
"""What the two tokens of a row were sampled with; the policy says 0.75 and 0.25 now, so rho = 1.5 and 1."""
DENOMINATORS: dict[str, tuple[Denominator, list[float]]] = {
    "current": (CurrentDenominator(), [0.75, 0.25]),
    "behaviour": (BehaviourDenominator(), OLD),
    "sequence": (SequenceDenominator(), [0.75 / math.sqrt(1.5), 0.25 / math.sqrt(1.5)]),
    "one": (UnitDenominator(), [1.0, 1.0]),
    "shaped": (ShapedDenominator(shape=0.5), [1.25**2 / 0.5, 0.75**2 / 0.5]),
}
MASKS: dict[str, tuple[StabilisingMask | None, list[float]]] = {
    "none": (None, [1.0, 1.0]),
    "clip": (ClipMask(low=0.1, high=0.2), [0.0, 1.0]),
    "weight-clip": (WeightClipMask(low=0.1, high=0.2), [1.2 / 1.5, 1.0]),
    "sequence-clip": (SequenceClipMask(low=0.1, high=0.2), [0.0, 0.0]),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("denominator", DENOMINATORS)
def test_the_loss_and_its_gradient_by_hand(denominator: str, mask: str, make_batch: Any) -> None:
    below, of = DENOMINATORS[denominator]
    kept, factors = MASKS[mask]
    batch = make_batch([[1, 1]], behaviour_logp=torch.tensor([OLD], dtype=torch.float64).log(), advantages=[[2.0, 2.0]])
    logp = torch.tensor([[0.75, 0.25]], dtype=torch.float64).log().requires_grad_(True)
    loss = UnifiedGradient(denominator=below, mask=kept)(batch, TokenLogProbs(logp))
    wanted = [-m * 2 * pi / b for m, pi, b in zip(factors, [0.75, 0.25], of)]
    assert loss[0].tolist() == pytest.approx(wanted, abs=1e-12)
    loss.sum().backward()
    assert logp.grad is not None and logp.grad[0].tolist() == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("denominator", DENOMINATORS)
def test_reads_the_modes_that_runs_of_before_wrote(denominator: str, mask: str) -> None:
    written = {
        "part": "unified-gradient", "denominator": denominator, "mask": mask, "low": 0.1, "high": 0.2, "shape": 0.5
    }  # fmt: skip
    expected = UnifiedGradient(denominator=DENOMINATORS[denominator][0], mask=MASKS[mask][0])
    found = part_from_json({"part": "hybrid", "sampled": written, "coefficient": 0.5})
    assert found == Hybrid(sampled=expected, coefficient=0.5)
    assert part_from_json(found.to_json()) == found


def test_a_truncated_distribution_is_refused_where_the_policy_that_sampled_is_in_it() -> None:
    for denominator, (part, _) in DENOMINATORS.items():
        assert UnifiedGradient(denominator=part).uses_behaviour == (denominator in ("behaviour", "sequence"))
        assert UnifiedGradient(denominator=part, mask=ClipMask()).uses_behaviour
    hpt = set_value(etude.method("hpt"), "experience.top_p=0.9")
    assert any("truncated distribution" in s for s in hpt.objections())
    other = set_value(hpt, "objective.sampled.denominator=current-denominator")
    assert not any("UnifiedGradient" in s for s in other.objections())


def test_is_set_by_name() -> None:
    hpt = set_values(etude.method("hpt"), ["objective.sampled.mask=clip-mask", "objective.sampled.mask.high=0.28"])
    assert hpt.objective.sampled.mask == ClipMask(high=0.28)
    assert set_value(hpt, "objective.sampled.mask=none").objective == etude.method("hpt").objective
    with pytest.raises(ConfigError, match=r"ClipMask\.low must be a number in \(0, 1\), got 1\.5"):
        ClipMask(low=1.5)
