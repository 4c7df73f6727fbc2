"""Processes that take one training step when asked, so that two libraries can be timed step by step in turn."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from _machine import processor

HERE = Path(__file__).resolve().parent


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
            **({"memory": round(max(s["memory"] for s in self.steps), 2)} if "memory" in self.steps[0] else {}),
        }


def in_turn(arms: list[Arm], rounds: int, warmup: int = 1) -> None:
    """A B A B ...: one step of each arm, `rounds` times, after warm-up steps."""
    for number in range(warmup + rounds):
        for arm in arms:
            arm.step(keep=number >= warmup)


def ratios(arm: Arm, other: Arm, clock: str, what: str = "completion_tokens") -> list[float]:
    """Ratio of completion tokens (or other work) per second of `clock`, round by round."""
    return [a[what] / a[clock] * b[clock] / b[what] for a, b in zip(arm.steps, other.steps)]


def peer_folder(peer: str) -> Path:
    """Where a peer's environment is: 'trl' in `.venv-trl`."""
    return HERE.parent / f".venv-{peer}"


def peer_python(peer: str) -> Path:
    """The interpreter of a peer's environment, made from `requirements-<peer>.txt` on first use."""
    folder, requirements = peer_folder(peer), HERE / f"requirements-{peer}.txt"
    python = folder / "bin" / "python"
    if not python.exists():
        pins = [line for line in requirements.read_text().splitlines() if line.startswith("torch==")]
        held = folder / "constraints.txt"
        print(f"Making {folder.name} (once; a few minutes) ...", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        held.write_text("\n".join(pins) + "\n")
        pip = [str(python), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, *pins], check=True)
        subprocess.run([*pip, "-c", str(held), "-r", str(requirements)], check=True)
    return python


def machine(peer: str, own: list[str], theirs: list[str]) -> dict[str, Any]:
    """Where this was measured, and with which versions of which packages."""
    site = next((peer_folder(peer) / "lib").glob("python3*/site-packages"))
    found = dict(p.name.removesuffix(".dist-info").split("-", 1) for p in site.glob("*.dist-info"))
    mine = {name: version(name) for name in own}
    return {"cpu": processor(), "cores": os.cpu_count(), "etude": mine, "peer": {k: found[k] for k in theirs}}
