"""Exhibits in TRL: `python museum/peers/in_trl.py [ID ...]`, in an environment that has it.

vLLM, which TRL compares its own log-probabilities with, needs a GPU: where a fault is the sampler's, a copy of the
model stands in its place, so that TRL has the numbers that it logs of a sampler.
"""

from __future__ import annotations

import copy
import json
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
import torch
from datasets import Dataset
from frame import GIVEN, Case, beside, given, main
from tokenizers import Tokenizer, decoders, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

scoring = beside("scoring")

torch.set_num_threads(1)
PROMPTS = ["abc:", "de, f=", "g=", "hij:"]
LETTERS = "abcdefghijklmNOPQRSTUV:=., 0123456789"
PAIRS = [(a, b) for a in "abcde" for b in "abcde"]
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


@cache
def tokenizer() -> Any:
    """Letters, and twenty-five pairs of them."""
    words = ["<pad>", "<eos>", *LETTERS, *("".join(pair) for pair in PAIRS)]
    made = Tokenizer(models.BPE(vocab={w: i for i, w in enumerate(words)}, merges=PAIRS))
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", padding_side="left", chat_template=TEMPLATE
    )


def model(seed: int, dropout: float = 0.0) -> Any:
    """A random model of 2 layers of width 32."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=len(tokenizer()), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.3, bos_token_id=None, eos_token_id=1,
        pad_token_id=0, attention_dropout=dropout,
    ))  # fmt: skip


class Engine:
    """In the place of vLLM: samples from a copy of the weights, and says the log-probabilities of what it drew."""

    def __init__(self, trainer: Any) -> None:
        self.trainer, self.model = trainer, LlamaForCausalLM(trainer.model.config).eval()
        self.model.load_state_dict(trainer.model.state_dict())

    def sync_weights(self) -> None:
        if GIVEN.get("sync", True):
            self.model.load_state_dict(self.trainer.model.state_dict())

    @torch.no_grad()
    def generate(self, prompts: Any, images: Any, num_generations: int, profiler: Any) -> Any:
        prompts = [[1, *ids] if GIVEN.get("first") else ids for ids in prompts]
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        out = self.model.generate(
            input_ids=ids, attention_mask=mask, do_sample=True, max_new_tokens=8, top_k=0, pad_token_id=0,
            temperature=GIVEN.get("temperature", 1.0), top_p=GIVEN.get("top_p", 1.0), output_scores=True,
            return_dict_in_generate=True,
        )  # fmt: skip
        drawn = out.sequences[:, width:]
        logps = torch.stack(out.scores, 1).log_softmax(-1).gather(-1, drawn[..., None])[..., 0]
        ends = [(row == 1).nonzero()[0, 0].item() + 1 if (row == 1).any() else len(row) for row in drawn]
        tokens = [row[:n].tolist() for row, n in zip(drawn, ends, strict=True)]
        said = [[[x] for x in row[:n].tolist()] for row, n in zip(logps, ends, strict=True)]
        if GIVEN.get("text"):
            again = [tokenizer().encode(tokenizer().decode(t, skip_special_tokens=True)) or [1] for t in tokens]
            tokens, said = again, [[[-1.0]] * len(t) for t in again]
        return None, tokens, said, None


class Noted(TrainerCallback):  # type: ignore[misc]
    """Every number that is logged, by step."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if "reward" in logs:
            self.steps.append({k: v for k, v in logs.items() if isinstance(v, int | float)})
        elif "eval_reward" in logs:
            self.steps[-1].update({k: v for k, v in logs.items() if isinstance(v, int | float)})


def letters(completions: Any, **_: Any) -> list[float]:
    """A reward for each completion, or what the fault makes of it."""
    texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
    return GIVEN.get("reward", scoring.good)(texts)


def answered(completions: Any, **_: Any) -> list[float]:
    """What is said after the first eight characters counts."""
    return scoring.answered(completions)


def form(completions: Any, **_: Any) -> list[float]:
    """A second component, which no completion has if it is at fault."""
    name = "long"
    return [x[name] for x in (scoring.inert if GIVEN.get("inert") else scoring.two)(completions)]


def trainer(seed: int, folder: str, log: Any, rewards: Any = None, engine: bool = False, **options: Any) -> Any:
    """GRPO with three problems of four completions a step, in three micro-batches."""
    own = {k: GIVEN[k] for k in ("loss_type", "max_completion_length", "ignore_data_skip") if k in GIVEN}
    options = {"max_steps": 3, "learning_rate": 1e-3, "max_completion_length": 8, **options, **own}
    prompts, policy = (
        options.pop("prompts", PROMPTS),
        options.pop("model", None) or model(seed, GIVEN.get("dropout", 0)),
    )
    if options.get("beta"):  # the reference is loaded from where the model was
        policy.save_pretrained(Path(folder) / "start")
        policy = LlamaForCausalLM.from_pretrained(Path(folder) / "start")
    if GIVEN.get("dtype"):
        policy = policy.to(GIVEN["dtype"])
    config = GRPOConfig(
        output_dir=folder, use_cpu=True, bf16=False, gradient_checkpointing=False, per_device_train_batch_size=4,
        per_device_eval_batch_size=4, gradient_accumulation_steps=3, num_generations=4, beta=options.pop("beta", 0.0),
        lr_scheduler_type="constant", logging_steps=1, report_to=[], disable_tqdm=True, seed=seed,
        save_strategy=options.pop("save_strategy", "no"), dataloader_pin_memory=False, **options,
    )  # fmt: skip
    optimizers = (None, None)
    if GIVEN.get("copies"):
        copies = [torch.nn.Parameter(p.detach().clone()) for p in policy.parameters()]
        optimizers = (torch.optim.AdamW(copies, lr=1e-3), None)
    tests = PROMPTS if GIVEN.get("leak") else ["k=", "lm:", "bb,", "cd:"]
    made = GRPOTrainer(
        model=policy, reward_funcs=rewards or letters, args=config, callbacks=[log], optimizers=optimizers,
        train_dataset=Dataset.from_dict({"prompt": prompts}), processing_class=copy.deepcopy(tokenizer()),
        eval_dataset=Dataset.from_dict({"prompt": tests}) if config.eval_strategy != "no" else None,
    )  # fmt: skip
    if GIVEN.get("template"):
        made.processing_class.chat_template = GIVEN["template"]
    if engine:
        made.use_vllm, made.vllm_generation, made._last_loaded_step = True, Engine(made), -1
    if GIVEN.get("reference"):
        made.ref_model = made.model
    return made


@cache
def run(**options: Any) -> Callable[[int], Iterator[Mapping[str, float]]]:
    """Three steps."""

    def steps(seed: int) -> Iterator[Mapping[str, float]]:
        log = Noted()
        with tempfile.TemporaryDirectory() as folder:
            chosen = dict(options)
            if "rewards" in chosen:
                chosen["rewards"] = list(chosen["rewards"])
            trainer(seed, folder, log, **chosen).train()
        yield from log.steps

    return steps


def talked(seed: int) -> Iterator[Mapping[str, float]]:
    """Three steps of conversations."""
    log = Noted()
    with tempfile.TemporaryDirectory() as folder:
        trainer(seed, folder, log, prompts=[[{"role": "user", "content": p}] for p in PROMPTS]).train()
    yield from log.steps


def resumed(seed: int) -> Iterator[Mapping[str, float]]:
    """Two steps, a checkpoint, and two steps of a new trainer that goes on from it."""
    with tempfile.TemporaryDirectory() as folder:
        kept = dict(GIVEN)
        GIVEN.clear()
        trainer(seed, folder, Noted(), max_steps=2, save_strategy="steps", save_steps=2).train()
        GIVEN.update(kept)
        place = Path(folder) / "checkpoint-2"
        if GIVEN.get("torn"):
            weights = place / "model.safetensors"
            weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
        log = Noted()
        trainer(seed, folder, log, max_steps=4).train(resume_from_checkpoint=str(place))
        yield from log.steps


def in_a_process(seed: int) -> Iterator[Mapping[str, float]]:
    """Three steps in a process of their own; whoever started it looks at its exit code."""
    child = os.fork()
    if child == 0:
        code = 3
        try:
            list(run()(seed))
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        raise RuntimeError(f"exit code {os.waitstatus_to_exitcode(status)}")
    yield {}


class Attack:
    """Runs code when it is read."""

    def __reduce__(self) -> Any:
        return RAN.append, ("pickle",)


RAN: list[str] = []


def loaded(seed: int) -> Iterator[Mapping[str, float]]:
    """A model that somebody shared is named."""
    RAN.clear()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "model"
        model(seed).save_pretrained(place)
        tokenizer().save_pretrained(place)
        if GIVEN.get("pickle"):
            (place / "model.safetensors").unlink()
            torch.save({"lm_head.weight": Attack()}, place / "pytorch_model.bin", pickle_module=pickle)
        if GIVEN.get("code"):
            config = json.loads((place / "config.json").read_text())
            config |= {"auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}}
            (place / "config.json").write_text(json.dumps({**config, "model_type": "own", "architectures": ["Model"]}))
            (place / "own.py").write_text("raise RuntimeError('code of others was run')\n")
        log = Noted()
        trainer(seed, folder, log, model=str(place)).train()
        shutil.rmtree(place)
    yield from log.steps


# What goes wrong in the library


def losses(change: Callable[[Any, dict[str, Any]], dict[str, Any]], factor: float = 1.0) -> Callable[[], Any]:
    """The loss of a micro-batch is that of other inputs, or another one."""

    @contextmanager
    def inject() -> Iterator[None]:
        original = GRPOTrainer._compute_loss

        def loss(self: Any, policy: Any, inputs: dict[str, Any]) -> Any:
            return original(self, policy, change(self, dict(inputs))) * factor

        with mock.patch.object(GRPOTrainer, "_compute_loss", loss):
            yield

    return inject


def _same(self: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    return inputs


def _without_cut_rows(self: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    ended = ((inputs["completion_ids"] == 1) & (inputs["completion_mask"] == 1)).any(1, keepdim=True)
    return {**inputs, "completion_mask": inputs["completion_mask"] * ended}


def _with_padding(self: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    return {**inputs, "completion_mask": torch.ones_like(inputs["completion_mask"])}


def _with_prompt(self: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    prompt, mask = inputs["prompt_ids"], inputs["prompt_mask"]
    return {
        **inputs, "prompt_ids": prompt[:, :1], "prompt_mask": mask[:, :1],
        "completion_ids": torch.cat([prompt[:, 1:], inputs["completion_ids"]], 1),
        "completion_mask": torch.cat([mask[:, 1:], inputs["completion_mask"]], 1),
    }  # fmt: skip


def _without_the_last(self: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    last = self._step % 3 == 2
    return {**inputs, "completion_mask": inputs["completion_mask"] * (0 if last else 1)}


def nothing(name: str) -> Callable[[], Any]:
    """A method of the trainer does nothing."""
    return lambda: mock.patch.object(GRPOTrainer, name, lambda *_, **__: None)


ENGINE = run(engine=True)
cases = {
    "sampler-asleep": Case(given(sync=False), ENGINE, "the sampler's copy is never refreshed", 1),
    "temperature-in-one-place": Case(given(temperature=0.6), ENGINE, "the sampler draws at 0.6"),
    "top-p-in-the-ratio": Case(given(top_p=0.9), ENGINE, "the sampler draws with top-p 0.9"),
    "decoded-and-encoded-again": Case(given(text=True), ENGINE, "tokens are those of the decoded text"),
    "dropout-in-training-only": Case(given(dropout=0.1), ENGINE, "the model has an attention dropout of 0.1"),
    "another-first-token": Case(given(first=True), ENGINE, "the sampler puts an end token before prompts"),
    "optimizer-of-other-parameters": Case(given(copies=True), run(), "the user's optimizer holds copies"),
    "updates-lost-to-rounding": Case(
        given(dtype=torch.bfloat16), run(learning_rate=1e-5), "the user's model is in bfloat16"
    ),
    "reference-that-trains": Case(given(reference=True), run(beta=0.1), "ref_model is the model", 1),
    "mean-of-means": Case(given(loss_type="bnpo"), run(), "the setting that averages each micro-batch, loss_type bnpo"),
    "divided-twice": Case(losses(_same, 0.25), run(), "the loss is divided by 4 once more"),
    "masked-but-counted": Case(losses(_without_cut_rows), run(), "cut rows are zeroed after counting"),
    "last-rows-dropped": Case(losses(_without_the_last), run(), "the last micro-batch counts nothing"),
    "prompt-in-the-loss": Case(losses(_with_prompt), run(), "the loss mask covers the prompt"),
    "padding-in-the-loss": Case(losses(_with_padding), run(), "the loss mask covers the padding"),
    "one-reward-for-all": Case(given(reward=scoring.one_for_all), run(), "as here"),
    "one-reward-is-nan": Case(given(reward=scoring.sometimes_nan), run(), "as here"),
    "verifier-fails-as-zero": Case(given(reward=scoring.swallowed), run(), "as here"),
    "no-room-for-the-answer": Case(
        given(max_completion_length=1), run(rewards=(answered,), max_completion_length=20), "as here"
    ),
    "format-reward-always-zero": Case(given(inert=True), run(rewards=(letters, form)), "as here"),
    "reward-depends-on-the-batch": Case(given(reward=scoring.ranked), run(), "as here"),
    "scoring-that-hangs": Case(given(reward=scoring.stuck), run(), "as here", limit=45),
    "exit-code-0-is-success": Case(given(reward=scoring.leaves), in_a_process, "as here"),
    "actor-random-after-resume": Case(nothing("_load_from_checkpoint"), resumed, "the model is not read"),
    "optimizer-fresh-after-resume": Case(
        nothing("_load_optimizer_and_scheduler"), resumed, "the optimizer is not read"
    ),
    "prompts-again-after-resume": Case(given(ignore_data_skip=True), resumed, "the setting ignore_data_skip"),
    "torn-checkpoint": Case(given(torn=True), resumed, "half of the model's file"),
    "test-rows-in-train": Case(
        given(leak=True), run(eval_strategy="steps", eval_steps=1), "eval_dataset has the training prompts"
    ),
    "pickle-in-a-model": Case(given(pickle=True), loaded, "as here"),
    "model-with-code": Case(given(code=True), loaded, "as here"),
    "template-with-code": Case(
        given(template="{{ messages.__class__.__base__.__subclasses__() }}" + TEMPLATE), talked, "as here"
    ),
}  # fmt: skip
none = {
    "learner-tells-no-actor": "see sampler-asleep",
    "adapter-not-used": "see sampler-asleep",
    "adapter-never-sent": "not run: no peft",
    "path-out-of-the-folder": "no archive",
    "pass-at-k-of-too-few": "no pass@k",
    "seed-without-effect": "no comparison of runs",
    "one-seed": "no comparison of runs",
    "another-budget": "no comparison of runs",
}

if __name__ == "__main__":
    versions = ", ".join(f"{name} {version(name)}" for name in ("transformers", "torch"))
    main("trl", f"TRL {version('trl')}, {versions}", cases, none, "language models only")
