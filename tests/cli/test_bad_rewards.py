"""A reward function that fails in the middle of a run: what is said, what is safe, and going on once it is mended."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from command import Cli, tiny

pytestmark = pytest.mark.slow
GOOD = "def score(completions, **columns):\n    return [float(len(c)) for c in completions]\n"
SECOND = """
from pathlib import Path

def score(completions, **columns):
    calls = Path("calls")
    calls.write_text(calls.read_text() + "x" if calls.exists() else "x")
    if len(calls.read_text()) > 2:  # the first step scores once and once more to see whether it is deterministic
        {fault}
    return [float(len(c)) for c in completions]
"""
FAULTS = {
    "raises": ("raise KeyError('gold')", "KeyError"),
    "wrong length": ("return [1.0]", "must return 8"),
    "wrong type": ("return ['high'] * len(completions)", "'high'"),
    "not a list": ("return None", "None"),
    "nan": ("return [float('nan')] * len(completions)", "nan"),
    "ends its process": ("import os; os._exit(3)", "3"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_run_is_safe_and_goes_on_with_a_mended_function(cli: Cli, tmp_path: Path, fault: str) -> None:
    code, word = FAULTS[fault]
    (tmp_path / "faulty.py").write_text(SECOND.format(fault=code))
    flags = ("--reward", "faulty.py:score", "--checkpoint-every", "1", *tiny(steps=3, evaluate=0), "--out", "run")
    answer = cli("train", "grpo", *flags)
    assert answer.code == 1
    assert answer.sentence.startswith("etude: score")
    assert word in answer.sentence
    assert "The run is safe at step 1 (run/checkpoints/step-1); go on with: etude train --resume run" in answer.sentence
    assert "etude/rewards" not in answer.err, "frames of the library help nobody"
    if fault in ("raises", "nan", "ends its process"):
        assert "problem 'compose/train/" in answer.sentence
        assert "completion was '" in answer.sentence

    (tmp_path / "faulty.py").write_text(GOOD)
    mended = cli("train", "--resume", "run", "--accept-changes", "--quiet")
    assert mended.code == 0, mended.err
    steps = [json.loads(line)["step"] for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3]


def test_a_function_that_hangs_has_a_deadline(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\n\n\ndef score(completions):\n    time.sleep(60)\n")
    flags = (*tiny(steps=3, evaluate=0)[:-4], "--set", "problems=1", "--set", "experience.size=2")
    answer = cli("train", "grpo", "--reward", "slow.py:score", "--set", "rewards.0.timeout=0.2", *flags, "--out", "run")
    assert answer.code == 1
    assert "0.2 s" in answer.sentence
    assert "problem 'compose/train/" in answer.sentence
    assert "safe at step 0" in answer.sentence


def test_a_file_that_cannot_be_imported_is_refused_before_anything(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import no_such_module\n\n\ndef score(completions):\n    return [0.0]\n")
    answer = cli("train", "grpo", "--reward", "broken.py:score", *tiny(), "--out", "run")
    assert answer.code == 2
    assert "no_such_module" in answer.sentence
    assert not (tmp_path / "run").exists()


def test_a_function_that_is_not_there_is_answered_with_the_closest(
    cli: Cli, tmp_path: Path, forget: Callable[[str], None]
) -> None:
    (tmp_path / "some_rewards.py").write_text(GOOD)
    answer = cli("train", "grpo", "--reward", "some_rewards.py:scores", *tiny(), "--out", "run")
    assert answer.code == 2
    assert "'score'" in answer.sentence
    assert not (tmp_path / "run").exists()
