"""TRL's runs, by `.venv-trl`: trains what each job asks for with TRL's own trainers, and keeps the weights on the way.

A job is a JSON file (`jobs.py`). Beside it come `step-N/`, weights in Hugging Face's format, and `finished.json`. A job
that is finished is left alone. The task, its problems in their order and its reward are etude's; all else is TRL's.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from etude.core.episodes import Problem
from etude.core.streams import Stream
from etude.curricula.uniform import Uniform
from etude.runs.training import compose_task

Job = dict[str, Any]
COMMON = {
    "use_cpu": True, "bf16": False, "gradient_checkpointing": False, "lr_scheduler_type": "constant",
    "optim": "adamw_torch", "weight_decay": 0.0, "logging_strategy": "steps", "logging_steps": 1,
    "save_strategy": "no", "report_to": [], "disable_tqdm": True, "dataloader_pin_memory": False,
    "model_init_kwargs": {"dtype": "float32"},
}  # fmt: skip
SAMPLING = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "shuffle_dataset": False}


def main() -> None:
    """Do the jobs named on the command line, one after another."""
    import torch

    torch.set_num_threads(1)
    for path in map(Path, sys.argv[1:]):
        if not (path.parent / "finished.json").is_file():
            begun, used = time.monotonic(), time.process_time()
            found = train(json.loads(path.read_text()), path.parent)
            found |= {"seconds": round(time.monotonic() - begun, 1), "processor": round(time.process_time() - used, 1)}
            (path.parent / "unfinished.json").write_text(json.dumps(found))
            (path.parent / "unfinished.json").replace(path.parent / "finished.json")
        print(path.parent, flush=True)


def train(job: Job, folder: Path) -> dict[str, Any]:
    """One run; what was counted, and what TRL logged at every step."""
    from transformers import PrinterCallback, set_seed

    set_seed(job["seed"])
    counted = {"completions": 0, "tokens": 0}
    trainer = TRAINERS[job["trainer"]](job, counted)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(keeper(folder, job))
    trainer.train()
    logged = [line for line in trainer.state.log_history if "train_runtime" not in line]
    return {"steps": trainer.state.global_step, **{k: v for k, v in counted.items() if v}, "log": logged}


def keeper(folder: Path, job: Job) -> Any:
    """Saves the weights before the first step, every so many steps, and after the last."""
    from transformers import TrainerCallback

    class Keep(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
            model.save_pretrained(folder / "step-0")

        def on_step_end(self, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
            if state.global_step % job["every"] == 0 or state.global_step == job["steps"]:
                model.save_pretrained(folder / f"step-{state.global_step}")

    return Keep()


# What a run learns from


def problems(job: Job) -> list[Problem]:
    """The problems of all steps, in the order in which etude's arm with this seed gets them."""
    pool: Any = compose_task(job["task"], job["set"]).problems("train")
    if "pool" in job:
        pool = [Problem(**each) for each in json.loads(Path(job["pool"]).read_text())]
    return Uniform().bind().choose(pool, job["steps"] * job["problems"], Stream(job["seed"]))


def rewards(job: Job, asked: list[Problem], counted: dict[str, int]) -> Any:
    """The task's reward as TRL asks for one: of completions, with the columns of their rows."""
    task: Any = compose_task(job["task"], job["set"])

    def reward(completions: list[str], completion_ids: list[list[int]], number: list[int], **_: Any) -> list[float]:
        counted["completions"] += len(completions)
        counted["tokens"] += sum(map(len, completion_ids))
        return [task.score(asked[n], completion) for n, completion in zip(number, completions)]

    return reward


# Trainers


def settings(job: Job, **more: Any) -> dict[str, Any]:
    """TRL's settings of a job; its own come last."""
    return {
        **COMMON, "output_dir": tempfile.mkdtemp(), "seed": job["seed"], "max_steps": job["steps"],
        "learning_rate": job["lr"], "max_grad_norm": 1.0, **more, **job["settings"],
    }  # fmt: skip


def tokenizer(job: Job) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(job["model"], padding_side="left")


def sampling(job: Job, counted: dict[str, int], kind: Any, config: Any) -> Any:
    """A trainer that samples: every step one batch of all completions of all its problems."""
    from datasets import Dataset
    from trl.rewards import get_soft_overlong_punishment

    asked = problems(job)
    scored = [rewards(job, asked, counted)]
    if "overlong" in job:
        scored.append(get_soft_overlong_punishment(job["max_tokens"], job["overlong"] * job["max_tokens"]))
    own = settings(
        job, **SAMPLING, num_generations=job["size"], max_completion_length=job["max_tokens"],
        per_device_train_batch_size=job["problems"] * job["size"], gradient_accumulation_steps=1,
    )  # fmt: skip
    data = Dataset.from_dict({"prompt": [str(p.prompt) for p in asked], "number": list(range(len(asked)))})
    return kind(
        model=job["model"], reward_funcs=scored, args=config(**own), train_dataset=data, processing_class=tokenizer(job)
    )


def grpo(job: Job, counted: dict[str, int]) -> Any:
    """GRPO and its variants."""
    from trl import GRPOConfig, GRPOTrainer

    return sampling(job, counted, GRPOTrainer, GRPOConfig)


def rloo(job: Job, counted: dict[str, int]) -> Any:
    """RLOO."""
    from trl import RLOOConfig, RLOOTrainer

    return sampling(job, counted, RLOOTrainer, RLOOConfig)


def reinforce(job: Job, counted: dict[str, int]) -> Any:
    """REINFORCE with the batch's mean reward as baseline, which TRL has not: its GRPO with other advantages."""
    from trl import GRPOConfig, GRPOTrainer

    class Reinforce(GRPOTrainer):  # type: ignore[misc]  # TRL is not installed beside etude
        def _calculate_rewards(self, *arguments: Any) -> Any:
            self.paid = super()._calculate_rewards(*arguments)
            return self.paid

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            found = super()._generate_and_score_completions(inputs)
            scores = self.paid.nansum(1)
            return {**found, "advantages": scores - scores.mean()}

    return sampling(job, counted, Reinforce, GRPOConfig)


def written(job: Job, columns: dict[str, str]) -> dict[str, Any]:
    """Rows of given text: the prompt, and what each column takes of a problem's information."""
    asked = problems(job)
    return {"prompt": [str(p.prompt) for p in asked], **{c: [p.info[k] for p in asked] for c, k in columns.items()}}


def sft(job: Job, counted: dict[str, int]) -> Any:
    """Supervised fine-tuning."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    own = settings(job, per_device_train_batch_size=job["problems"], train_sampling_strategy="sequential")
    data = Dataset.from_dict(written(job, {"completion": "demonstration"}))
    return SFTTrainer(model=job["model"], args=SFTConfig(**own), train_dataset=data, processing_class=tokenizer(job))


def dpo(job: Job, counted: dict[str, int]) -> Any:
    """Direct preference optimization."""
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    own = settings(job, per_device_train_batch_size=job["problems"], train_sampling_strategy="sequential")
    data = Dataset.from_dict(written(job, {"chosen": "chosen", "rejected": "rejected"}))
    return DPOTrainer(model=job["model"], args=DPOConfig(**own), train_dataset=data, processing_class=tokenizer(job))


TRAINERS = {"grpo": grpo, "rloo": rloo, "reinforce": reinforce, "sft": sft, "dpo": dpo}

if __name__ == "__main__":
    main()
