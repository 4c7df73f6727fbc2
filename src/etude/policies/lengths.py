"""Tokens of every prompt, counted once: a second start with the same data and tokenizer reads them from a cache."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import date
from typing import TYPE_CHECKING

from etude.core.episodes import Problem
from etude.core.task import LanguageTask, SingleTurn
from etude.policies.chat import opening
from etude.policies.showing import shown, system_text
from etude.runtime import environment, remembered

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from etude.policies.protocols import Speaker

FEW = 1000
"""Prompts up to which counting is faster than it is worth keeping."""


def prompt_lengths(problems: Sequence[Problem], task: LanguageTask, policy: Speaker) -> list[int]:
    """Tokens of what the policy is shown of each problem."""

    def count() -> list[int]:
        return [size(problem, task, policy) for problem in problems]

    if len(problems) < FEW or type(task.played_in()) is not SingleTurn:
        return count()
    tokenizer = _fingerprint(policy.tokenizer)
    if tokenizer is None:
        return count()
    return remembered.numbers("lengths", _key(problems, task, tokenizer), len(problems), count)


def size(problem: Problem, task: LanguageTask, policy: Speaker) -> int:
    """Tokens of what the policy is shown of a problem."""
    segments = shown(task.played_in().reset(problem, 0), task, policy)
    return sum(map(len, opening(segments, policy, task.add_bos)))


def _fingerprint(tokenizer: PreTrainedTokenizerBase) -> list[str | None] | None:
    """All that the tokens of a text depend on; None for a tokenizer that cannot say."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    own = hashlib.sha256(backend.to_str().encode()).hexdigest()
    template = str(tokenizer.chat_template)
    today = date.today().isoformat() if "strftime" in template else ""
    versions = [environment.version(name) for name in ("etude", "transformers", "tokenizers")]
    return [own, template, today, json.dumps(tokenizer.special_tokens_map, default=str), *versions]


def _key(problems: Sequence[Problem], task: LanguageTask, tokenizer: Sequence[str | None]) -> str:
    system = None if task.system is None else system_text(task.system)
    about = [*tokenizer, task.chat, system, list(task.template_arguments), task.add_bos]
    sha = hashlib.sha256(json.dumps(about).encode())
    for problem in problems:
        prompt = problem.prompt if isinstance(problem.prompt, str) else [dict(m) for m in problem.prompt]
        sha.update(json.dumps([prompt, problem.info.get("template_arguments")], default=str).encode())
    return sha.hexdigest()
