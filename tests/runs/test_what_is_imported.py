"""What a command imports before it does anything: seconds that everyone waits for."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.parametrize(
    "modules, spared",
    [
        (["etude.runs.train", "etude.runs.worlds.control", "etude.loops.on_policy"], ["transformers", "peft"]),
        (["etude.runs.worlds.control", "etude.loops.off_policy"], ["transformers", "peft"]),
        (["etude.runs.worlds.enumerable"], ["transformers", "peft"]),
        (["etude.runs.worlds.language", "etude.loops.language"], ["transformers.modeling_utils", "peft"]),
    ],
)
def test_models_of_language_are_imported_where_one_is_made(modules: list[str], spared: list[str]) -> None:
    """Control and enumeration have none; of language only once there is a model."""
    asked = f"import sys, {', '.join(modules)}; print(*[m for m in {spared} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
