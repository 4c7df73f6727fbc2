"""d3rlpy's arm of `offline_returns_vs_d3rlpy.py`, run by `.venv-d3rlpy`: METHOD DATA SEED UPDATES POLICY.

Trains on the columns of DATA (`.npz`) and writes the last policy's likeliest actions to POLICY, as TorchScript.
"""

from __future__ import annotations

import sys
from typing import Any

import d3rlpy
import numpy as np
import torch
from d3rlpy.logging import NoopAdapterFactory
from d3rlpy.models.encoders import VectorEncoderFactory
from d3rlpy.optimizers.lr_schedulers import CosineAnnealingLRFactory
from d3rlpy.optimizers.optimizers import AdamFactory
from d3rlpy.preprocessing import StandardObservationScaler


def configured(method: str, updates: int) -> Any:
    """d3rlpy's algorithm in etude's settings: 256-256, batches of 256, and what differs from d3rlpy's own."""
    encoder = VectorEncoderFactory(hidden_units=[256, 256])
    shared: dict[str, Any] = {"actor_encoder_factory": encoder, "critic_encoder_factory": encoder, "batch_size": 256}
    if method == "td3-bc":
        return d3rlpy.algos.TD3PlusBCConfig(**shared, observation_scaler=StandardObservationScaler())
    if method == "iql":
        falling = AdamFactory(lr_scheduler_factory=CosineAnnealingLRFactory(T_max=updates))
        return d3rlpy.algos.IQLConfig(**shared, value_encoder_factory=encoder, actor_optim_factory=falling)
    return d3rlpy.algos.CQLConfig(**shared, alpha_learning_rate=0.0)


def main() -> None:
    """Train, and write the policy."""
    method, data, seed, updates, policy = sys.argv[1:]
    torch.set_num_threads(1)
    d3rlpy.seed(int(seed))
    columns = np.load(data)
    numbers, ends = ("observations", "actions", "rewards"), ("terminals", "timeouts")
    logs = d3rlpy.dataset.MDPDataset(*(columns[k] for k in numbers), *(columns[k].astype(np.float32) for k in ends))
    algorithm = configured(method, int(updates)).create(device=False)
    algorithm.fit(
        logs, n_steps=int(updates), n_steps_per_epoch=int(updates), show_progress=False,
        logger_adapter=NoopAdapterFactory(),
    )  # fmt: skip
    algorithm.save_policy(policy)


if __name__ == "__main__":
    main()
