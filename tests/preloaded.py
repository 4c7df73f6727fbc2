"""What a process looks up once, looked up before `processes.py` forks any: patterns, names, schemas, and no tensor."""

import peft  # noqa: F401
import tokenizers.trainers  # noqa: F401
import transformers.convert_slow_tokenizer  # noqa: F401
from transformers.conversion_mapping import get_checkpoint_conversion_mapping

import etude
from etude.runs.training import Options

get_checkpoint_conversion_mapping("llama")  # a thousand patterns, of all models
for name in ("grpo", "ppo", "dqn"):
    etude.method(name)
for name in ("compose", "cartpole"):
    etude.task(name)
Options(steps=1)
