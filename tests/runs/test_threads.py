"""A resumed run computes with as many threads as it began with: its last digits depend on it.

That two threads compute the same every time is not run here: their barriers stand still on a machine that others use.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from etude.runs.train import _same_threads
from etude.runs.worlds.language import SMALL, threads
from etude.runtime.cores import cores
from etude.runtime.environment import changes, record
from language_toys import random_policy


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    count = torch.get_num_threads()
    yield
    torch.set_num_threads(count)


def test_a_resumed_run_has_the_threads_that_it_began_with(tmp_path: Path) -> None:
    torch.set_num_threads(2)
    (tmp_path / "environment.json").write_text(json.dumps(before := record(0)))
    torch.set_num_threads(1)
    assert any("threads changed from 2 to 1: it does not go on exactly" in said for said in changes(before, record(0)))
    assert _same_threads(tmp_path) == torch.get_num_threads() == 2
    assert changes(before, record(0)) == []


def test_a_folder_that_says_nothing_of_threads_changes_none(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    assert _same_threads(tmp_path) is None and torch.get_num_threads() == 1


def test_small_models_take_one_thread_and_others_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = random_policy()
    size = sum(p.numel() for p in policy.model.parameters())
    assert size < SMALL and threads(policy) == 1
    monkeypatch.setattr("etude.runs.worlds.language.SMALL", size)
    assert threads(policy) == cores()
