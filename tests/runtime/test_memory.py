"""The estimate of memory that is printed before a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from etude.policies import footprint
from etude.policies.language import LanguagePolicy
from etude.runtime import memory


def test_the_estimate_counts_four_copies_of_the_weights_and_the_cache() -> None:
    policy = LanguagePolicy.load("tiny")
    count, config = sum(p.numel() for p in policy.model.parameters()), policy.config
    model, cache, _ = footprint.estimate(policy, rows=10, length=50, micro_tokens=8192)
    assert model == 4 * 4 * count  # weights, gradients, two moments, in float32
    assert cache == 10 * 50 * config.num_hidden_layers * 2 * config.num_key_value_heads * config.head_dim * 4


def test_too_much_is_said_in_a_sentence(monkeypatch) -> None:
    policy = LanguagePolicy.load("tiny")
    assert "more than" not in footprint.sentence(policy, 10, 50, 8192)
    monkeypatch.setattr(footprint, "available", lambda: 1_000_000)
    assert "more than the 1 MB that are free" in footprint.sentence(policy, 10, 50, 8192)


def group(folder: Path, limit: str, used: int, cached: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {cached}\n")


def test_a_container_may_have_less_than_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The least that any group above leaves: 1000 - 700 + 50 of the outer, while the inner has no limit."""
    own = tmp_path / "own"
    own.write_text("0::/outer/inner\n")
    group(tmp_path / "groups" / "outer", "1000", 700, cached=50)
    group(tmp_path / "groups" / "outer" / "inner", "max", 600)
    assert memory.allowed(tmp_path / "groups", own) == 350
    group(tmp_path / "groups" / "outer" / "inner", "620", 600)
    assert memory.allowed(tmp_path / "groups", own) == 20
    monkeypatch.setattr(memory, "allowed", lambda: 20)
    assert memory.available() == 20
    monkeypatch.setattr(memory, "allowed", lambda: None)
    assert (memory.available() or 0) > 1_000_000


def test_groups_of_the_first_kind(tmp_path: Path) -> None:
    own, place = tmp_path / "own", tmp_path / "groups" / "memory" / "job"
    own.write_text("12:cpu,cpuacct:/job\n4:memory:/job\n0::/\n")
    place.mkdir(parents=True)
    (place / "memory.limit_in_bytes").write_text("500\n")
    (place / "memory.usage_in_bytes").write_text("450\n")
    (place / "memory.stat").write_text("inactive_file 1\ntotal_inactive_file 30\n")
    assert memory.allowed(tmp_path / "groups", own) == 80
    assert memory.allowed(tmp_path / "groups", tmp_path / "nothing") is None
