"""The report's part on entropy: how it changed beside what the law says, and what score it was traded for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeGuard

from etude.evaluation.entropy_law import Drift, Exhaustion, drift, exhaustion
from etude.evaluation.page import escape
from etude.evaluation.report_curves import Curve, card, thin
from etude.evaluation.svg import Series, svg_curve
from etude.evaluation.ticks import number

LEAST = 10
"""Steps, or evaluations, below which nothing is fitted."""
ENTROPIES, SCORES = ("entropy_estimate", "entropy"), ("accuracy", "reward")
"""What is looked for among the metrics, the first that is there."""
LINE = 60
"""Points of the fitted curve."""


def render(curves: Mapping[str, Curve], looks: Mapping[str, Curve] = {}) -> str:
    """Both as HTML; nothing of a run that has no entropy, is short, or in which nothing moved.

    Args:
        curves: the run's metrics by name.
        looks: its evaluations by name, whose pass@1 is the score where there are enough of them.
    """
    entropy = next((curves[name] for name in ENTROPIES if name in curves), None)
    if entropy is None:
        return ""
    cards = [_law(entropy, curves.get("covariance")), _trade(entropy, *_score(entropy, curves, looks))]
    return f'<div class="grid large">{"".join(cards)}</div>' if any(cards) else ""


def _law(entropy: Curve, covariance: Curve | None) -> str:
    """Changes from step to step, measured and predicted."""
    steps, (h, c) = _together(entropy, covariance or Curve([], []))
    if len(steps) <= LEAST or not any(c[:-1]):
        return ""
    found = drift(h, c)
    lines = {
        "measured": Curve(steps[:-1], [*found.measured]),
        "−η Cov(log π, A)": Curve(steps[:-1], [*found.predicted]),
    }
    return _said(card("change of entropy in a step, nats", lines), _of_law(found))


def _of_law(found: Drift) -> str:
    return (
        f"η = {number(found.eta)} fits best, and explains {found.explained:.0%} of the squared changes. On a table, by "
        "a natural policy gradient, η is the step's rate (arXiv:2505.22617, theorem 2); elsewhere sign and shape are "
        "what can be compared."
    )


def _trade(entropy: Curve, name: str, score: Curve) -> str:
    """Scores against the entropy at which they were reached, and the fit."""
    steps, (h, r) = _together(entropy, score)
    if len(steps) < LEAST or len(set(h)) < 2 or len(set(r)) < 2:
        return ""
    found, low, high = exhaustion(h, r), min(h), max(h)
    grid = [low + (high - low) * i / LINE for i in range(LINE + 1)]
    series = [
        Series("measured", *thin(Curve(h, [*r]))[:2], scattered=True),
        Series("−a exp(H) + b", grid, [found.at(x) for x in grid]),
    ]
    title = name.replace("_", " ")
    chart = svg_curve(series, title=f"{title} by entropy", x_label="entropy, nats", y_label=title)
    head = f"<header><b>{escape(title)} by entropy</b><span>R² {number(found.r_squared)}</span></header>"
    return _said(f'<div class="card">{head}{chart}</div>', _of_trade(found))


def _of_trade(found: Exhaustion) -> str:
    return (
        f"R = −a exp(H) + b with a = {number(found.a)}, b = {number(found.b)}; residual {number(found.residual)} "
        f"(root mean square). At H = 0 it ends at b − a = {number(found.ceiling)}."
    )


def _said(chart: str, sentence: str) -> str:
    """A chart with a sentence below it."""
    return f'<div>{chart}<p class="soft">{escape(sentence)}</p></div>'


def _score(entropy: Curve, curves: Mapping[str, Curve], looks: Mapping[str, Curve]) -> tuple[str, Curve]:
    """What is called the score, at the steps whose entropy is that of the policy that had it.

    A step's metrics are of the policy that it began with, which an evaluation after the step before has measured.
    """
    tested = next((name for name, curve in looks.items() if "pass@1" in name and len(curve.steps) >= LEAST), None)
    if tested is not None:
        last = max(entropy.steps)
        return tested, Curve([min(s + 1, last) for s in looks[tested].steps], looks[tested].values)
    name = next((name for name in SCORES if name in curves), "")
    return name, curves.get(name, Curve([], []))


def _together(first: Curve, second: Curve) -> tuple[list[float], tuple[list[float], list[float]]]:
    """Steps at which both are known, and what they are there."""
    here, there = (dict(zip(c.steps, c.values)) for c in (first, second))
    both = [(s, x, y) for s, x in here.items() if _known(x) and _known(y := there.get(s))]
    return [s for s, _, _ in both], ([x for _, x, _ in both], [y for _, _, y in both])


def _known(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)
