"""What `grpo_vs_trl.py --ablation` switches off: it is there, it is used, and without it the numbers are the same."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import _own  # noqa: E402
from _cases import ALL_CASES, make_model  # noqa: E402
from _own import SAVINGS, build, remove  # noqa: E402

from etude.policies import prompts  # noqa: E402

CASE = "check-0.8M"
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_model(ALL_CASES[CASE], tmp_path_factory.mktemp("model")))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """How often each function that stands in the place of another is asked, until all is as it was."""
    counts: dict[str, int] = {}

    def counted(owner: Any, name: str, value: Any) -> None:
        def ask(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return value(*args, **kwargs)

        if callable(value):
            counts[name] = 0
        mock.patch.object(owner, name, ask if callable(value) else value).start()

    monkeypatch.setattr(_own, "instead", counted)
    monkeypatch.setattr(prompts, "LONG", 1)
    yield counts
    mock.patch.stopall()


def stepped(model: str, *without: str) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """A step's metrics, and the weights after it."""
    loop = build(CASE, model, None, False, False)
    for saving in without:
        remove(saving, loop)
    metrics = loop.step().metrics
    return metrics, {k: v.detach().clone() for k, v in loop.policy.model.named_parameters()}


@pytest.mark.slow
@pytest.mark.parametrize("saving", SAVINGS)
def test_without_a_saving_a_step_comes_to_the_same(saving: str, model: str, asked: dict[str, int]) -> None:
    wanted, weights = stepped(model)
    found, others = stepped(model, saving)
    assert all(asked.values()), asked
    for name in ("reward", "completion_length", "rows"):
        assert found[name] == pytest.approx(wanted[name], rel=1e-5)
    assert found["gradient_norm"] == pytest.approx(wanted["gradient_norm"], rel=1e-4)
    for name, value in others.items():
        torch.testing.assert_close(value, weights[name], rtol=0, atol=1e-6)
