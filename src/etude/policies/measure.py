"""Pass@1 of a causal language model on a task, by plain sampling: what `pretrain` reports about `tiny`."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from etude.core.episodes import Episode, Problem, Segment
from etude.core.streams import Stream
from etude.core.task import LanguageTask

if TYPE_CHECKING:
    from torch import Generator
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class Score(NamedTuple):
    """Means over problems: share solved by one sample, share solved by any of `samples`, and reward."""

    pass_at_1: float
    pass_at_n: float
    reward: float
    samples: int


def measure(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: LanguageTask,
    split: str,
    count: int = 128,
    samples: int = 8,
    seed: int = 0,
) -> Score:
    """Play the first `count` problems of a split `samples` times each, at temperature 1."""
    pool = task.problems(split)
    problems = [pool[i] for i in range(min(count, len(pool))) for _ in range(samples)]
    episodes = play(model, tokenizer, task, problems, Stream(seed).split("measure", task.id, split).torch)
    solved = [task.success(e) for e in episodes]
    groups = [solved[i : i + samples] for i in range(0, len(solved), samples)]
    return Score(fmean(solved), fmean(map(any, groups)), fmean(e.reward for e in episodes), samples)


def play(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: LanguageTask,
    problems: Sequence[Problem],
    generator: Generator,
) -> list[Episode]:
    """One whole episode per problem; all of them advance together, turn by turn."""
    worlds = [task.played_in() for _ in problems]
    episodes = [Episode(p, w.reset(p, i)) for i, (p, w) in enumerate(zip(problems, worlds))]
    views = [[t for s in e.segments for t in tokenizer.encode(s.text)] for e in episodes]
    active = list(range(len(problems)))
    for _ in range(task.max_turns):
        completions = sample(model, [views[i] for i in active], task.max_tokens, generator)
        playing = []
        for i, tokens in zip(active, completions):
            segment = Segment("assistant", str(tokenizer.decode(tokens, skip_special_tokens=True)), tokens)
            result = worlds[i].step(segment)
            segment.reward = result.reward
            episodes[i].segments += [segment, *result.segments]
            episodes[i].info.update(result.info or {})
            views[i] += tokens + [t for s in result.segments for t in tokenizer.encode(s.text)]
            if not (result.terminated or result.truncated):
                playing.append(i)
        active = playing
        if not active:
            break
    return episodes


def sample(model: PreTrainedModel, prompts: Sequence[list[int]], limit: int, generator: Generator) -> list[list[int]]:
    """Continue every prompt at temperature 1 until its end token (kept) or `limit` tokens."""
    import torch

    end, width = model.config.eos_token_id, max(map(len, prompts))
    tokens = torch.tensor([[end] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    cache: Any = None
    sampled: list[torch.Tensor] = []
    going = torch.ones(len(prompts), dtype=torch.bool)
    with torch.inference_mode():
        while going.any() and len(sampled) < limit:
            places = (mask.cumsum(1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
            out = model(
                input_ids=tokens, attention_mask=mask, position_ids=places, past_key_values=cache, use_cache=True
            )
            cache = out.past_key_values
            tokens = torch.multinomial(out.logits[:, -1].float().softmax(-1), 1, generator=generator)
            sampled.append(tokens[:, 0])
            going &= tokens[:, 0] != end
            mask = torch.cat([mask, mask.new_ones(len(prompts), 1)], 1)
    return [_until(end, row) for row in torch.stack(sampled, 1).tolist()]


def _until(end: int, tokens: list[int]) -> list[int]:
    return tokens[: tokens.index(end) + 1] if end in tokens else tokens
