"""TRL's arm of `multi_turn_vs_trl.py`, run by `.venv-trl`: the episodes of one row for every line on standard input.

Timed is `GRPOTrainer._generate`: prompts to tokens, the first turn, and TRL's own tool loop with the others. What a
trainer does around it (padding, rewards, advantages) is done too, and not counted. The models' tokenizer has neither a
chat template nor a parser of responses, so it is given both: every text is shown as it is, and whatever is said is a
call of the one tool. The parser is a function of two lines, which costs less than TRL's own for known models.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from typing import Any

from _cases import GROUP
from _talks import TALKS, Talk

TEMPLATE = """{% for m in messages %}{{ m.content }} {% for c in m.tool_calls or [] %}{{ c.function.name }} \
{% for k, v in c.function.arguments.items() %}{{ k }} {{ v }} {% endfor %}{% endfor %}{% endfor %}"""
"""Texts as they are. TRL asks that calls are shown, and takes the tokens of an observation from behind one."""


def main() -> None:
    """Play until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("talk", choices=TALKS)
    parser.add_argument("folder")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--greedy", action="store_true")
    chosen = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")  # TRL prints to standard output; answers go to the real one alone
    os.dup2(2, 1)
    import torch

    torch.set_num_threads(chosen.threads)
    talk = TALKS[chosen.talk]
    trainer, seen = watched(talk, chosen.folder, chosen.greedy)
    batch = [{"prompt": [{"role": "user", "content": text}]} for text in talk.openings() for _ in range(GROUP)]
    trainer.model.train()
    assert torch.get_num_threads() == chosen.threads
    print("ready", file=answers, flush=True)
    for _ in sys.stdin:
        seen["read"] = seen["generate"] = 0
        trainer._generate_and_score_completions(batch)
        assert seen["sampled"] == talk.completions * talk.said, f"{seen['sampled']} tokens were sampled"
        assert seen["failures"] == 0, "a tool failed"
        if not chosen.greedy:
            del seen["tokens"]
        print(json.dumps(seen), file=answers, flush=True)


def watched(talk: Talk, folder: str, greedy: bool) -> tuple[Any, dict[str, Any]]:
    """A trainer, and what its last `_generate` took and found; `generate`: processor time of the model's turns."""
    trainer, seen = make_trainer(talk, folder, greedy), dict[str, Any]()
    generate, turn = trainer._generate, trainer._generate_single_turn

    def timed(prompts: list[Any]) -> Any:
        begun, used = time.perf_counter(), time.process_time()
        found = generate(prompts)
        seen.update(seconds=time.perf_counter() - begun, processor=time.process_time() - used)
        prompt_ids, completion_ids, mask = found[:3]
        seen.update(episodes=len(prompts), sampled=sum(map(sum, mask or [[1] * len(c) for c in completion_ids])))
        seen["tokens"] = [p + c for p, c in zip(prompt_ids, completion_ids)]
        failures = trainer._metrics["train"].get("tools/failure_frequency") or [0]
        seen["failures"] = max(failures)
        return found

    def counted(prompt_ids: list[list[int]], *arguments: Any, **named: Any) -> Any:
        seen["read"] += sum(map(len, prompt_ids))
        used = time.process_time()
        found = turn(prompt_ids, *arguments, **named)
        seen["generate"] += time.process_time() - used
        return found

    trainer._generate, trainer._generate_single_turn = timed, counted
    return trainer, seen


def make_trainer(talk: Talk, folder: str, greedy: bool) -> Any:
    """TRL's trainer with one tool."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    def tool(said: str) -> str:
        """Answers.

        Args:
            said: What was said.
        """
        return talk.tool(said)

    def rewards(completions: list[Any], **_: Any) -> list[float]:
        return [1.0] * len(completions)

    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    tokenizer.chat_template = TEMPLATE

    def parsed(ids: list[int], **_: Any) -> dict[str, Any]:
        call = {"name": "tool", "arguments": {"said": tokenizer.decode(ids, skip_special_tokens=True)}}
        return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}

    tokenizer.response_template = {"given": "parse_response of this file"}  # else TRL looks for a known model's
    tokenizer.parse_response = parsed
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, gradient_checkpointing=False,
        model_init_kwargs={"dtype": "float32"}, per_device_train_batch_size=talk.completions,
        num_generations=GROUP, max_completion_length=talk.length, max_tool_calling_iterations=talk.turns - 1,
        temperature=1.0, top_k=0, top_p=1.0, beta=0.0, loss_type="grpo", num_iterations=1,
        generation_kwargs={"max_new_tokens": talk.answer, **({"do_sample": False} if greedy else {})},
        max_steps=1, logging_strategy="no", save_strategy="no", report_to=[], disable_tqdm=True, seed=0,
        dataloader_pin_memory=False,
    )  # fmt: skip
    prompts = [[{"role": "user", "content": text}] for text in talk.openings()]
    return GRPOTrainer(
        model=folder, reward_funcs=rewards, args=config, processing_class=tokenizer, tools=[tool],
        train_dataset=Dataset.from_dict({"prompt": prompts}),
    )  # fmt: skip


if __name__ == "__main__":
    main()
