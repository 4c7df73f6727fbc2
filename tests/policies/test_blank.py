"""Models without pre-training: named by their size, the same weights every time, trained by the ordinary loop."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from etude.core.errors import ConfigError
from etude.core.registry import get_method
from etude.loops.language import LanguageLoop
from etude.policies.language import LanguagePolicy
from etude.tasks.language.paths import Paths

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("name", "layers", "width", "heads"),
    [("blank:1x120", 1, 120, 1), ("blank:1x120x1", 1, 120, 1), ("blank:2x64x4", 2, 64, 4)],
)
def test_the_name_says_the_size(name: str, layers: int, width: int, heads: int) -> None:
    policy = LanguagePolicy.load(name, device="cpu")
    found = policy.config
    assert (found.num_hidden_layers, found.hidden_size, found.num_attention_heads) == (layers, width, heads)
    assert policy.decode(policy.encode("f1(x) abc")) == "f1(x) abc"
    assert policy.end_ids == LanguagePolicy.load("tiny", device="cpu").end_ids


@pytest.mark.slow
def test_the_weights_are_the_same_every_time_and_no_other_random_number_changes() -> None:
    torch.manual_seed(5)
    before = torch.rand(3)
    torch.manual_seed(5)
    first = LanguagePolicy.load("blank:1x16", device="cpu")
    assert torch.equal(torch.rand(3), before)
    again = LanguagePolicy.load("blank:1x16", device="cpu")
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters()))
    assert LanguagePolicy.load("blank:1x16", device="cpu", dtype="float64").model.dtype == torch.float64


@pytest.mark.slow
def test_it_is_trained_and_saved_like_any_other(tmp_path: Path) -> None:
    task = Paths(nodes=10, density=0.3, demonstrations=2)
    policy = LanguagePolicy.load("blank:1x32", device="cpu")
    loop = LanguageLoop(get_method("alpine").replace(problems=16), task, policy, seed=0, steps=20)
    losses = [loop.step().metrics["loss"] for _ in range(20)]
    assert losses[-1] < 0.8 * losses[0]
    policy.save(tmp_path / "model")
    kept = LanguagePolicy.load(str(tmp_path / "model"), device="cpu")
    assert all(torch.equal(a, b) for a, b in zip(policy.parameters(), kept.parameters()))


@pytest.mark.parametrize(
    "name", ["blank", "blank:", "blank:120", "blank:0x120", "blank:1x", "blank:1x2x3x4", "blank:axb"]
)
def test_names_that_say_no_size_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="blank:LAYERSxWIDTH"):
        LanguagePolicy.load(name, device="cpu")


def test_heads_must_divide_the_width_evenly() -> None:
    with pytest.raises(ConfigError, match=r"3 heads of 33.3333: each must be an even number wide"):
        LanguagePolicy.load("blank:1x100x3", device="cpu")
    with pytest.raises(ConfigError, match="even number"):
        LanguagePolicy.load("blank:1x15", device="cpu")
