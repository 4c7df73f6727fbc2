"""Processes that take one training step when asked, so that two libraries can be timed step by step in turn."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PEER = HERE.parent / ".venv-trl"
REQUIREMENTS = HERE / "requirements-trl.txt"


class Arm:
    """One process, one step at a time."""

    def __init__(self, python: Path | str, script: str, *arguments: str, threads: int) -> None:
        limits = {k: str(threads) for k in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        quiet = {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "TOKENIZERS_PARALLELISM": "false"}
        command = [str(python), "-W", "ignore", str(HERE / script), *arguments, "--threads", str(threads)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **limits, **quiet}, cwd=HERE,
        )  # fmt: skip
        self.steps: list[dict[str, float]] = []
        if self._read() != "ready":
            raise SystemExit(f"{script} did not start.")

    def _read(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line:
            assert self.process.stderr is not None
            raise SystemExit(f"{' '.join(map(str, self.process.args))} ended:\n{self.process.stderr.read()[-3000:]}")
        return line

    def step(self, keep: bool = True) -> None:
        """Take one step and note what it took; without `keep` it was a warm-up."""
        assert self.process.stdin is not None
        self.process.stdin.write("step\n")
        self.process.stdin.flush()
        answer = json.loads(self._read())
        if keep:
            self.steps.append(answer)

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def rate(self, what: str = "completion_tokens", clock: str = "seconds") -> float:
        """Tokens per second over all steps kept; `clock` may be 'processor', which other processes do not slow."""
        return sum(s[what] for s in self.steps) / sum(s[clock] for s in self.steps)

    def report(self) -> dict[str, Any]:
        """What was measured, summed up."""
        means = {
            k: round(statistics.mean(s[k] for s in self.steps), 3) for k in ("generate", "update", "length", "reward")
        }
        return {
            "completion_tokens_per_second": round(self.rate(), 1),
            "total_tokens_per_second": round(self.rate("total_tokens"), 1),
            "seconds": [round(s["seconds"], 3) for s in self.steps],
            "processor_seconds": [round(s["processor"], 3) for s in self.steps],
            **means,
        }


def in_turn(arms: list[Arm], rounds: int, warmup: int = 1) -> None:
    """A B A B ...: one step of each arm, `rounds` times, after warm-up steps."""
    for number in range(warmup + rounds):
        for arm in arms:
            arm.step(keep=number >= warmup)


def ratios(arm: Arm, other: Arm, clock: str) -> list[float]:
    """Ratio of completion tokens per second of `clock`, round by round."""
    return [
        a["completion_tokens"] / a[clock] * b[clock] / b["completion_tokens"] for a, b in zip(arm.steps, other.steps)
    ]


def peer_python() -> Path:
    """The interpreter of the peer's environment, made on first use."""
    python = PEER / "bin" / "python"
    if not python.exists():
        pins = [line for line in REQUIREMENTS.read_text().splitlines() if line.startswith("torch==")]
        held = PEER / "constraints.txt"
        print(f"Making {PEER.name} (once; a few minutes) ...", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(PEER)], check=True)
        held.write_text("\n".join(pins) + "\n")
        pip = [str(python), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, *pins], check=True)
        subprocess.run([*pip, "-c", str(held), "-r", str(REQUIREMENTS)], check=True)
    return python
