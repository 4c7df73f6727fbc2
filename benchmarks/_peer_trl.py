"""TRL's arm, run by `.venv-trl`: one GRPO training step for every line on standard input, one JSON line back.

The clock runs from `on_step_begin` to `on_step_end`: generation, rewards, forward, backward and optimizer. Fetching the
step's prompts from the data loader comes before it and is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from typing import Any

from _cases import ALL_CASES, GROUP, RATE, memory, prompts, reward


def main() -> None:
    """Train until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("case")
    parser.add_argument("folder")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=("float32", "autocast", "bfloat16"), default="float32")
    parser.add_argument("--rows", type=int, default=0, help="rows of one forward pass; 0 takes all")
    parser.add_argument("--device", default="cpu")
    chosen = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")  # TRL prints to standard output; answers go to the real one alone
    os.dup2(2, 1)
    import torch

    torch.set_num_threads(chosen.threads)
    train(chosen, answers)


def train(chosen: Any, answers: Any) -> None:
    """One call of `GRPOTrainer.train`, held at every step until a line arrives."""
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    case = ALL_CASES[chosen.case]
    rows = chosen.rows or case.completions
    seen: dict[str, float] = {}

    def rewards(prompts: list[str], completion_ids: list[list[int]], completions: list[str], **_: Any) -> list[float]:
        seen["completion_tokens"] = sum(map(len, completion_ids))
        seen["total_tokens"] = seen["completion_tokens"] + sum(len(p.split()) for p in prompts)
        seen["scored"] = time.perf_counter()
        found = [reward(c, case.success) for c in completions]
        seen["reward"], seen["length"] = sum(found) / len(found), seen["completion_tokens"] / len(found)
        return found

    class Clock(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if not sys.stdin.readline():
                os._exit(0)
            self.begun, self.used = time.perf_counter(), time.process_time()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            seconds = time.perf_counter() - self.begun
            used = time.process_time() - self.used
            generate = seen.pop("scored") - self.begun
            found = {"seconds": seconds, "processor": used, "generate": generate, "update": seconds - generate, **seen}
            found |= memory(chosen.device)
            print(json.dumps(found), file=answers, flush=True)

    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=chosen.device == "cpu", bf16=chosen.dtype == "autocast",
        gradient_checkpointing=False,
        model_init_kwargs={"dtype": "bfloat16" if chosen.dtype == "bfloat16" else "float32"},
        per_device_train_batch_size=rows, gradient_accumulation_steps=case.completions // rows,
        num_generations=GROUP, max_completion_length=case.answer, temperature=1.0, top_k=0, top_p=1.0,
        beta=0.0, loss_type="grpo", num_iterations=1, learning_rate=RATE, lr_scheduler_type="constant",
        optim="adamw_torch", max_grad_norm=1.0, weight_decay=0.0, max_steps=1000, logging_strategy="no",
        save_strategy="no", report_to=[], disable_tqdm=True, seed=0, dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=chosen.folder, reward_funcs=rewards, args=config, callbacks=[Clock()],
        train_dataset=Dataset.from_dict({"prompt": prompts(case)}),
        processing_class=AutoTokenizer.from_pretrained(chosen.folder, padding_side="left"),
    )  # fmt: skip
    assert torch.get_num_threads() == chosen.threads
    print("ready", file=answers, flush=True)
    trainer.train()


if __name__ == "__main__":
    main()
