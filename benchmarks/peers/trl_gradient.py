"""TRL's part of `gradients_vs_trl.py`, by `.venv-trl`: one training step; what it learned from, and the gradient."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import PrinterCallback, TrainerCallback, set_seed
from trl_runs import TRAINERS


def main() -> None:
    """Write `job.safetensors` beside the job that is named on the command line."""
    path = Path(sys.argv[1])
    job, caught = json.loads(path.read_text()), dict[str, torch.Tensor]()
    torch.set_num_threads(1)
    set_seed(job["seed"])

    class Catch(TrainerCallback):  # type: ignore[misc]  # TRL is not installed beside etude
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
            gradients = {name: p.grad.detach().clone() for name, p in model.named_parameters()}
            caught.update({f"gradient.{k}": v for k, v in gradients.items()})

    trainer = TRAINERS[job["trainer"]](job, {"completions": 0, "tokens": 0})
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(Catch())
    own = trainer.compute_loss

    def watched(model: Any, inputs: Any, *arguments: Any, **named: Any) -> Any:
        tensors = {k: v for k, v in inputs.items() if isinstance(v, torch.Tensor) and v.dim()}
        caught.update({f"inputs.{k}": v.detach().clone() for k, v in tensors.items()})
        return own(model, inputs, *arguments, **named)

    trainer.compute_loss = watched
    trainer.train()
    save_file({k: v.contiguous() for k, v in caught.items()}, path.with_suffix(".safetensors"))


if __name__ == "__main__":
    main()
