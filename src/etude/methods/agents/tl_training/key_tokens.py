"""The tokens at which a tool is chosen: where they are in a worked call, and what they weigh."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from torch import Tensor

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.episodes import Episode, Problem
from etude.core.errors import ConfigError, DataError
from etude.core.fields import Ge
from etude.core.slots import Context, TokenWeights
from etude.core.task import LanguageTask
from etude.experience.data import Demonstrations
from etude.methods.agents.tl_training.listed import listed
from etude.rewards.tool_matches import CLOSE, OPEN, calls_in

if TYPE_CHECKING:
    from etude.core.method import Method

KEYS, ENDS = "key_tokens", "value_ends"
"""Where a written segment's `info` has the numbers of its key tokens, and of the tokens that end parameter values."""


@dataclass(frozen=True)
class Places:
    """Where in a text a call has its name, from `begin` to `end`, and the characters that end its values."""

    name: str
    begin: int
    end: int
    value_ends: tuple[int, ...]


class MarkedCalls(Demonstrations):
    """The worked call to each problem, in which it is noted which tokens choose the tool, and which end values.

    Key tokens are the first of the tool's name, and the first at which the call differs from the same call of each
    other tool that is listed (`info["signatures"]`, or JSON schemas: `listed`). Tokens that end a value are those with
    the closing quotation mark of a string, or with what follows another value. Answers without a call have neither.

    Raises: DataError for a problem that lists none; ConfigError for a tokenizer that does not say where tokens are.

    >>> worked = Problem("1", "?", info={"demonstration": "hello", "signatures": {"add": ["a", "b"]}})
    >>> MarkedCalls().rows_per_problem, MarkedCalls().missing(worked, LanguageTask())
    (1, None)
    """

    marks_calls: ClassVar[bool] = True

    def missing(self, problem: Problem, task: LanguageTask) -> str | None:
        if listed(problem) is not None:
            return super().missing(problem, task)
        return (
            f"Problem {problem.id!r} lists no tools to tell key tokens by: give data files 'signatures' (parameters by "
            "tool) or 'tools'."
        )

    def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        episodes = super().collect(problems, context)
        for episode in episodes:
            tools = listed(episode.problem) or {}
            for said in episode.segments:
                if said.role == "assistant":
                    keys, ends = marks(said.text, tools, context.policy.tokenizer)
                    begin = _begin(said.tokens, said.text, context.policy.tokenizer) if keys else 0
                    said.info |= {KEYS: [begin + i for i in keys], ENDS: [begin + i for i in ends]}
        return episodes


class KeyTokens(TokenWeights):
    """w on the tokens that choose a tool, 1 on the others, scaled so that a call weighs what it did (arXiv:2412.15495).

        w = min(n_other / n_key, most) if n_key < n_other, else 1,    factor_t = w_t n / sum_t w_t

    with n_key key tokens of the call's n tokens, and n_other others. Tokens that end a parameter's value have weight 1
    and are counted in neither. So the mean over a call's tokens becomes sum_t w_t loss_t / sum_t w_t, which does not
    depend on the scale of w. Needs `experience=marked-calls`, which says where these tokens are.

    Shapes: B rows, each a call -> factors [B, T].

    Args:
        most: w_max; 1 for equal weights.

    >>> mask = torch.ones(1, 6, dtype=torch.bool)
    >>> kinds = torch.tensor([[0, 1, 0, 2, 0, 0]])  # one key token, one that ends a value, four others
    >>> factors(call_weights(kinds, mask, most=9.0), mask).tolist()
    [[0.6666666865348816, 2.6666667461395264, 0.6666666865348816, 0.6666666865348816, 0.6666666865348816, \
0.6666666865348816]]
    """

    most: Annotated[float, Ge(1.0)] = 9.0

    def objection(self, method: Method) -> str | None:
        if not getattr(method.slots()["experience"], "marks_calls", False):
            return "weighs the tokens that choose a tool, and nobody says which they are: set experience=marked-calls."
        return None

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        kinds = kinds_of(batch.episodes, batch.action_mask)
        return factors(call_weights(kinds, batch.action_mask, self.most).to(policy.logp), batch.action_mask)


def kinds_of(episodes: Sequence[Episode], mask: Tensor) -> Tensor:
    """[B, T] 1 at key tokens, 2 at tokens that end a value, 0 elsewhere, as segments say."""
    kinds = torch.zeros_like(mask, dtype=torch.long)
    for row, episode in enumerate(episodes):
        begin = 0
        for said in episode.segments:
            for kind, name in ((2, ENDS), (1, KEYS)):  # a token that is both chooses
                kinds[row, [begin + i for i in said.info.get(name, ())]] = kind
            begin += len(said.tokens)
    return kinds


def call_weights(kinds: Tensor, mask: Tensor, most: float) -> Tensor:
    """[B, T] w of each token of a call, whose `kinds` are 1 for key tokens, 2 for ends of values and 0 for others."""
    key = (kinds == 1) & mask
    keys, others = key.sum(1), ((kinds == 0) & mask).sum(1)
    weight = torch.where(keys < others, (others / keys.clamp(min=1)).clamp(max=most), 1.0)
    return torch.where(key, weight[:, None], 1.0)


def factors(weights: Tensor, mask: Tensor) -> Tensor:
    """[B, T] weights divided by their mean over each row's masked tokens."""
    total = (weights * mask).sum(1, keepdim=True)
    return weights * mask.sum(1, keepdim=True) / torch.where(total > 0, total, 1.0)


def marks(text: str, tools: Iterable[str], tokenizer: Any) -> tuple[list[int], list[int]]:
    """Numbers of the key tokens of a text with calls, and of those that end parameter values; [] where it calls none.

    Raises ConfigError for a tokenizer that does not say which characters its tokens are of.
    """
    keys, ends = set[int](), set[int]()
    if calls_in(text) is None:
        return [], []
    if not tokenizer.is_fast:
        raise ConfigError(
            "Key tokens are found by the characters that tokens are of, which this model's tokenizer does not say: "
            "use one that the tokenizers library reads (tokenizer.json)."
        )
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    tokens, spans = encoded["input_ids"], encoded["offset_mapping"]
    for call in places(text):
        first = _holding(spans, call.begin)
        others = [name for name in tools if name != call.name]
        texts = [text[: call.begin] + other + text[call.end :] for other in others]
        differing = [_common(tokens, tokenizer.encode(each, add_special_tokens=False)) for each in texts]
        keys |= {first, *(max(first, i) for i in differing)}
        ends |= {_holding(spans, at) for at in call.value_ends}
    return sorted(keys), sorted(ends - keys)


def places(text: str) -> Iterator[Places]:
    """Where each call of a text that `calls_in` can read has its name and the ends of its values.

    >>> said = '<tool_call>\\n{"name": "add", "parameters": {"a": "x", "b": 2}}\\n</tool_call>'
    >>> [(call.name, said[call.begin : call.end], [said[i] for i in call.value_ends]) for call in places(said)]
    [('add', 'add', ['"', '}'])]
    """
    begin = text.index(OPEN) + len(OPEN)
    end = text.find(CLOSE, begin)
    body = text[begin : end if end >= 0 else len(text)]
    at = begin + len(body) - len(body.lstrip())
    for line in body.strip().split("\n"):
        inside = {key: span for key, *span in _members(text, text.index("{", at))}
        (name, start, stop), (_, where, _) = inside["name"], inside["parameters"]
        ends = tuple(e - 1 if isinstance(v, str) else e for _, v, _, e in _members(text, where))
        yield Places(str(name), start + 1, stop - 1, ends)
        at += len(line) + 1


def _members(text: str, at: int) -> Iterator[tuple[str, Any, int, int]]:
    """The members of the JSON object that begins at `at`: key, value, and where the value begins and ends."""
    read = json.JSONDecoder().raw_decode
    at = _behind(text, at + 1)
    while text[at] != "}":
        key, at = read(text, at)
        begin = _behind(text, _behind(text, at) + 1)
        value, end = read(text, begin)
        yield key, value, begin, end
        at = _behind(text, end)
        at = _behind(text, at + 1) if text[at] == "," else at


def _behind(text: str, at: int) -> int:
    """The first place from `at` on without white space."""
    while text[at] in " \t\r\n":
        at += 1
    return at


def _holding(spans: Sequence[tuple[int, int]], at: int) -> int:
    """The number of the token that has the character at `at`."""
    return next(i for i, (begin, end) in enumerate(spans) if begin <= at < end)


def _common(tokens: Sequence[int], others: Sequence[int]) -> int:
    """How many tokens two texts begin with alike, of the first all but the last at most."""
    alike = next((i for i, (one, two) in enumerate(zip(tokens, others)) if one != two), min(len(tokens), len(others)))
    return min(alike, len(tokens) - 1)


def _begin(tokens: Sequence[int], text: str, tokenizer: Any) -> int:
    """Where in a segment's tokens its text begins: behind what a chat template puts before it. Raises DataError."""
    own = tokenizer.encode(text, add_special_tokens=False)
    for begin in range(len(tokens) - len(own) + 1):
        if list(tokens[begin : begin + len(own)]) == own:
            return begin
    raise DataError(
        f"The tokens of the worked call {text!r} are not found in the turn as the chat template has it: it changes the "
        "text of calls, so that nobody can say which tokens choose the tool; use another template, or task.chat=never."
    )


__all__ = ["KeyTokens", "MarkedCalls", "Places", "call_weights", "factors", "kinds_of", "marks", "places"]
