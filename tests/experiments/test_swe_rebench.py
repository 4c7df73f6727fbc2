"""The experiment of SWE-rebench, made small: who is compared with whom, and that all candidates are judged rightly."""

from __future__ import annotations

import pytest

from etude.experiments.agents import swe_rebench
from etude.experiments.arms import variant
from etude.experiments.cells import spread_by
from etude.tasks.agents.mini_swe import MiniSWE
from sandboxes import needs_sandbox


@needs_sandbox
@pytest.mark.slow
def test_both_halves_are_asked_of_the_same_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, small in {"STEPS": 1, "TASKS": 6, "RUNS": 2, "GOOD": 1, "BAD": 1, "MODEL": "blank:1x16@code"}.items():
        monkeypatch.setattr(swe_rebench, name, small)
    monkeypatch.setattr(swe_rebench, "ASKED", MiniSWE(max_turns=1))
    monkeypatch.setattr(swe_rebench, "variant", lambda name: variant(name, {"problems": 2}))
    with spread_by(lambda function, jobs: [function(job) for job in jobs]):
        (pair,) = swe_rebench.experiment([3])
    assert pair.arm["resolved"] == pair.baseline["resolved"] == 0.0, "nothing can be resolved in one turn"
    assert pair.arm["candidates judged rightly"] == 1.0 and pair.seed == 3


def test_what_is_shown_is_older_than_the_model() -> None:
    assert swe_rebench.SHOWN.templates == "old" and swe_rebench.ASKED.templates == "all"
    assert swe_rebench.RELEASED == "2025-07-01"
