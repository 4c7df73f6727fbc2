"""Log-probabilities in training that are not those of the distribution that was sampled from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from etude_museum.tiny import language

from etude.core.episodes import Episode, Problem
from etude.core.slots import Context
from etude.evaluation.exhibits import Exhibit, Report
from etude.experience.groups import Groups
from etude.policies.language import LanguagePolicy
from etude.policies.sampling import Sampling

ANSWER = "The sampler used other weights, another temperature or a truncated distribution, or tokens were changed"


def _other_temperature(self: Groups, context: Context) -> Sampling:
    return Sampling(0.6 * self.temperature, max_tokens=context.max_tokens)


def _hidden_truncation(self: Groups, context: Context) -> Sampling:
    return Sampling(self.temperature, top_p=0.9, max_tokens=context.max_tokens)


@contextmanager
def reencoded() -> Iterator[None]:
    """Completions are kept as text, and encoded again for training."""
    original = Groups.collect

    def collect(self: Groups, problems: Sequence[Problem], context: Context) -> list[Episode]:
        episodes = original(self, problems, context)
        for s in (e.segments[-1] for e in episodes):
            s.tokens = context.policy.encode(s.text)
            s.action_mask, s.behaviour_logp = [1] * len(s.tokens), [-1.0] * len(s.tokens)
        return episodes

    with mock.patch.object(Groups, "collect", collect):
        yield


@contextmanager
def dropping() -> Iterator[None]:
    """The training forward is in training mode, the sampler's is not."""
    original = LanguagePolicy.evaluate

    def evaluate(self: LanguagePolicy, *given: Any) -> Any:
        self.model.train()
        try:
            return original(self, *given)
        finally:
            self.model.eval()

    with mock.patch.object(LanguagePolicy, "evaluate", evaluate):
        yield


@contextmanager
def first_token_lost() -> Iterator[None]:
    """Rows for training begin with another token than the prompt that was sampled from."""
    from etude.core.rows import to_batch

    def without(*given: Any, **options: Any) -> Any:
        batch = to_batch(*given, **options)
        return batch.replace(tokens=torch.cat([torch.ones_like(batch.tokens[:, :1]), batch.tokens[:, 1:]], 1))

    with mock.patch("etude.loops.gather.to_batch", without):
        yield


@contextmanager
def prompt_in_the_loss() -> Iterator[None]:
    """The mask of what was sampled covers the prompt too."""
    from etude.core.rows import to_batch

    def whole(*given: Any, **options: Any) -> Any:
        batch = to_batch(*given, **options)
        mask = batch.attention_mask.clone()
        mask[:, 0] = False
        return batch.replace(action_mask=mask)

    with mock.patch("etude.loops.gather.to_batch", whole):
        yield


@contextmanager
def padding_in_the_loss() -> Iterator[None]:
    """The mask of what was sampled goes on over the padding after the end of the text."""
    from etude.core.rows import to_batch

    def padded(*given: Any, **options: Any) -> Any:
        batch = to_batch(*given, **options)
        after = batch.action_mask.cummax(1).values
        return batch.replace(action_mask=batch.action_mask | after, attention_mask=batch.attention_mask | after)

    with mock.patch("etude.loops.gather.to_batch", padded):
        yield


exhibits = (
    Exhibit(
        id="temperature-in-one-place",
        kind="probabilities",
        report=Report(
            thread="huggingface/trl#4159",
            title="vLLM not computing correct log probs when using GRPO with =/=1 temperature",
        ),
        says="The sampler drew at one temperature and reported log-probabilities of another: importance ratios began "
        "at 2 instead of 1, for every user with a temperature other than 1.",
        mechanism="completions are drawn at 0.6 times the temperature that training divides by.",
        inject=lambda: mock.patch.object(Groups, "sampling", _other_temperature),
        run=language,
        expect=ANSWER,
    ),
    Exhibit(
        id="top-p-in-the-ratio",
        kind="probabilities",
        report=Report(
            thread="huggingface/trl#6789",
            title="GRPO: vLLM importance-sampling ratio is biased when top_p/top_k/min_p truncate sampling",
        ),
        says="What is sampled with top-p is likelier than under the policy: every ratio was too small by the mass that "
        "was cut off, and with it every gradient.",
        mechanism="completions are drawn with top-p 0.9, and nobody says so.",
        inject=lambda: mock.patch.object(Groups, "sampling", _hidden_truncation),
        run=language,
        expect=ANSWER,
    ),
    Exhibit(
        id="decoded-and-encoded-again",
        kind="probabilities",
        report=Report(
            thread="verl-project/verl#3720",
            title="Inconsistent Training and Inference Tokenization Result in Multi-Turn Rollout Training",
        ),
        says="Completions were kept as text and tokenized again for training: what was trained on had almost never "
        "been sampled.",
        mechanism="the tokens of each completion are those of its text, encoded again.",
        inject=reencoded,
        run=language,
        expect="has tokens that the sampler never emitted",
    ),
    Exhibit(
        id="dropout-in-training-only",
        kind="probabilities",
        report=Report(
            thread="Human-Agent-Society/reef#536",
            title="fix(megatron): train without dropout unless the model or the CLI asks for it",
            pull=True,
        ),
        says="Dropout was on by default in the trainer and off in the sampler: before the first update half of all "
        "tokens were masked as off-policy.",
        mechanism="the training forward runs in training mode, with a dropout of 0.1 in its attention.",
        inject=dropping,
        run=lambda: language(dropout=0.1),
        expect=ANSWER,
    ),
    Exhibit(
        id="another-first-token",
        kind="probabilities",
        report=Report(thread="huggingface/trl#3853", title="vllm prepends two BOS for LLama"),
        says="The engine put a second beginning-of-text token before prompts that had one: it answered another prompt "
        "than the one that was trained on, and rewards dropped.",
        mechanism="each row begins with the end-of-text token instead of what the sampler saw.",
        inject=first_token_lost,
        run=language,
        expect=ANSWER,
    ),
    Exhibit(
        id="prompt-in-the-loss",
        kind="reductions",
        report=Report(
            thread="TIGER-AI-Lab/verl-tool#116",
            title="Question about loss_mask behavior when mask_observations=False in _compose_final_output",
        ),
        says="One branch took the attention mask for the loss mask: the policy was pushed towards the prompts and the "
        "observations of its tools.",
        mechanism="the mask of sampled tokens covers the prompt too.",
        inject=prompt_in_the_loss,
        run=language,
        expect=ANSWER,
    ),
    Exhibit(
        id="padding-in-the-loss",
        kind="reductions",
        report=Report(
            thread="verl-project/verl#3805",
            title="[Bug] Padding tokens incorrectly included in response mask when EOS is absent",
        ),
        says="A completion without an end-of-text token had its padding counted as words of the policy, in loss, KL, "
        "advantages and statistics.",
        mechanism="the mask of sampled tokens goes on over the padding.",
        inject=padding_in_the_loss,
        run=language,
        expect=ANSWER,
    ),
)
