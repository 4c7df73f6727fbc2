"""d3rlpy's arm of `offline_speed_vs_d3rlpy.py`, run by `.venv-d3rlpy`: some updates of `fit` for every line on standard
input, one JSON line back.

An epoch is a turn: its logs are written and the model is saved, as `fit` does by itself. With `--fixed` every update
reads the rows of the first.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, TextIO

import d3rlpy
import numpy as np
import torch
from _offline_cases import SPEED, Fitted
from _operations import Operations
from d3rlpy.logging import FileAdapterFactory
from d3rlpy.models.encoders import VectorEncoderFactory
from d3rlpy.preprocessing import StandardObservationScaler


def algorithm_of(case: Fitted) -> Any:
    """d3rlpy's algorithm in the case's sizes; all else as d3rlpy has it."""
    encoder = VectorEncoderFactory(hidden_units=list(case.width))
    shared: dict[str, Any] = {
        "actor_encoder_factory": encoder, "critic_encoder_factory": encoder, "batch_size": case.batch
    }  # fmt: skip
    if case.method == "td3-bc":
        return d3rlpy.algos.TD3PlusBCConfig(**shared, observation_scaler=StandardObservationScaler())
    if case.method == "iql":
        return d3rlpy.algos.IQLConfig(**shared, value_encoder_factory=encoder)
    return d3rlpy.algos.CQLConfig(**shared)


class Turns:
    """What `fit` calls after every update: waits for a line between turns, answers with what the last one took."""

    def __init__(self, updates: int, out: TextIO) -> None:
        self.updates, self.out, self.operations, self.counted = updates, out, 0.0, Operations()
        self.counted.__enter__()
        self._begin()

    def _begin(self) -> None:
        if not sys.stdin.readline():
            sys.exit(0)
        self.begun, self.used = time.perf_counter(), time.process_time()

    def __call__(self, algorithm: Any, epoch: int, update: int) -> None:
        if update % self.updates:
            return
        if epoch == 1:
            self.counted.__exit__(None, None, None)
            self.operations = self.counted.total / self.updates
        found = {
            "seconds": time.perf_counter() - self.begun, "processor": time.process_time() - self.used,
            "updates": self.updates, "operations": self.operations,
        }  # fmt: skip
        print(json.dumps(found), file=self.out, flush=True)
        self._begin()


def main() -> None:
    """Train until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=list(SPEED))
    parser.add_argument("data", type=Path)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    out = sys.stdout
    with (
        tempfile.TemporaryDirectory() as scratch,
        Path(os.devnull).open("w") as nowhere,
        contextlib.redirect_stdout(nowhere),  # what it says of itself
    ):
        fit(chosen, scratch, out)


def fit(chosen: argparse.Namespace, scratch: str, out: TextIO) -> None:
    """As its users call it."""
    case, columns = SPEED[chosen.case], np.load(chosen.data)
    numbers, ends = ("observations", "actions", "rewards"), ("terminals", "timeouts")
    data = d3rlpy.dataset.MDPDataset(*(columns[k] for k in numbers), *(columns[k].astype(np.float32) for k in ends))
    algorithm = algorithm_of(case).create(device=False)
    if chosen.fixed:
        rows = data.sample_transition_batch(case.batch)
        data.sample_transition_batch = lambda size: rows
    print("ready", file=out, flush=True)
    algorithm.fit(
        data, n_steps=10_000_000, n_steps_per_epoch=case.updates, show_progress=False,
        callback=Turns(case.updates, out), logger_adapter=FileAdapterFactory(root_dir=scratch),
    )  # fmt: skip


if __name__ == "__main__":
    main()
