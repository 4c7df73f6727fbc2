"""What `etude data make` says at its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from etude.cli.data_make import show
from etude.runs.data_make import MadeData

FACTS = {"return": 1.0, "score": 50.0, "episodes": 2, "steps": 20, "fingerprint": "0123456789abcdef", "allow": ()}


@pytest.mark.parametrize(
    "faults, level",
    [
        ({"random": ["constant-rewards"], "expert": [], "mixed": [], "medium": []}, "mixed"),
        ({"random": [], "expert": [], "medium": []}, "medium"),
        ({"random": ["constant-rewards"], "expert": []}, "expert"),
        ({"random": ["constant-rewards"], "mixed": ["constant-rewards"]}, "mixed"),
    ],
)
def test_what_is_learned_from_first_has_more_than_imitation_in_it(
    faults: dict[str, list[str]], level: str, capsys: pytest.CaptureFixture[str]
) -> None:
    levels = {name: {**FACTS, "allow": allow} for name, allow in faults.items()}
    show(MadeData(Path("made"), "pointmaze-umaze", False, {"chance": 0.0, "expert": 1.0}, levels))
    line = capsys.readouterr().out.split("What to try next:")[1]
    assert f"--data made/{level}" in line
    assert ("task.allow=constant-rewards" in line) == bool(faults[level])
