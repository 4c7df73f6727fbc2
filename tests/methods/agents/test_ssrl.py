"""SSRL: what texts are worth, what of them is learned, and what pass@k says before."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.episodes import Episode, Problem, Segment
from etude.core.errors import ConfigError
from etude.core.registry import get_method
from etude.core.rows import to_batch
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.evaluation.pass_at_k import pass_at_k
from etude.loops.credit import credited, loss
from etude.methods.agents.ssrl import OwnInformation, SearchFormat, own_information, transcript
from etude.policies.byte_tokenizer import build_tokenizer
from etude.policies.word_tokenizer import build_word_tokenizer
from etude.rewards.scoring import score
from etude.rewards.search_tags import answer_in, format_score, informed_spans, same_words
from etude.tasks.agents.kb_search import kb_search

SSRL: Any = get_method("ssrl")
WORDS = build_word_tokenizer("facts", 256)
SEARCH = "<search>balada's boss</search><information>balada's boss is corino</information>"
WHOLE = f"<think>balada's boss</think>{SEARCH}<think>corino</think><answer>corino</answer>"
PROBLEM = Problem("1", "balada's boss?\n", "corino")


def rows(texts: list[str], tokenizer: Any = WORDS, group: int = 0) -> TokenBatch:
    """Episodes in which the policy said these texts, as rows in double precision."""
    episodes = []
    for text in texts:
        tokens = tokenizer.encode(text)
        count = len(tokens)
        said = Segment("assistant", text, tokens, [1] * count, [-0.5] * count)
        said.reward = kb_search.score(PROBLEM, text)
        episodes.append(Episode(PROBLEM, [Segment("user", "?", [3], [0], [0.0]), said], group))
    batch = to_batch(episodes, 0, 1.0, torch.device("cpu"))
    return batch.replace(rewards=batch.rewards.double(), weights=batch.weights.double(), scores=batch.scores.double())


def context(tokenizer: Any = WORDS) -> Context:
    return Context(kb_search, SimpleNamespace(tokenizer=tokenizer), Stream(0), max_tokens=64)


def test_the_four_corners() -> None:
    """With F 0 or 1, as in a binary score: right or not, in the grammar or not."""
    texts = [WHOLE, "<answer>corino</answer>", WHOLE.replace("answer>corino", "answer>corath"), "corino"]
    found = score(rows(texts), SSRL.rewards, context()).scores
    assert found.tolist() == pytest.approx([1.0, 0.9, 0.1, 0.0], abs=1e-7)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (WHOLE, 1.0),
        (f"  {WHOLE}\n", 1.0),
        ("<think>a</think><answer>b</answer>", 0.5),  # one thought of two, no search
        (f"<think>a</think>{SEARCH}<answer>b</answer>", 0.5 * 1 / 2),
        (f"<think>a</think>{SEARCH}{SEARCH}<think>a</think><answer>b</answer>", 2 / 3),
        ("<think>a</think>" * 8 + "<answer>b</answer>", 1 / 8),
        ("<think>a</think>" * 9 + "<answer>b</answer>", 0.0),
        (f"<think>a</think>{SEARCH} \n<think>a</think><answer>b</answer>", 1.0),
        (WHOLE.removeprefix("<think>"), 0.0),
        (WHOLE + ".", 0.0),
        (WHOLE.replace("</search>", "</search>so"), 0.0),  # something between a query and what it found
        (WHOLE.replace("balada's boss</s", "balada's\nboss</s"), 0.0),  # a query of two lines
        (WHOLE.replace("<search>balada's boss", "<search> "), 0.0),
        (WHOLE.replace("<search>balada's boss", "<search> Query "), 0.0),
        (WHOLE.replace("<information>balada's boss is corino", "<information>..."), 0.0),
        (WHOLE.replace("<think>corino", "<think>thought"), 0.0),
        (WHOLE.replace(SEARCH, "<search>q</search>"), 0.0),
        (WHOLE.replace(SEARCH, "<information>q</information>"), 0.0),
        (WHOLE.replace("<think>corino</think>", "<note>corino</note>"), 0.0),
        (WHOLE.replace("<think>corino</think>", "<think><think>corino</think></think>"), 0.0),
        ("", 0.0),
    ],
)
def test_the_grammar(text: str, expected: float) -> None:
    assert format_score(text) == pytest.approx(expected, abs=1e-12)


def test_what_a_search_answered_belongs_to_the_text() -> None:
    before, _, after = WHOLE.partition("<information>balada's boss is corino</information>")
    found = Segment("tool", "balada's boss is corino", info={"around": ["<information>", "</information>"]})
    said = [Segment("user", "?"), Segment("assistant", before), found, Segment("assistant", after)]
    episode = Episode(PROBLEM, said)
    assert transcript(episode) == WHOLE and SearchFormat(scale=2.0).score([episode], context()) == [2.0]


def test_answers() -> None:
    assert answer_in("<answer>a</answer> <answer>\nthe B.</answer> c") == "the B."
    assert same_words("the B.", ["b"]) and same_words("a  red, house", ["The red house", "x"])
    assert not same_words("b c", ["b"]) and not same_words("", [""])
    with pytest.raises(ConfigError, match="list of answers"):
        same_words("b", "b")


def test_blocks_are_no_actions_and_the_rest_is_as_it_was() -> None:
    batch = rows([WHOLE, SEARCH, "<information>balada"])
    marked = OwnInformation().marked(batch, context())
    learned = [WORDS.decode(r.tokens[0][r.action_mask[0]]) for r in (marked.rows(torch.tensor([i])) for i in range(3))]
    block = SEARCH[SEARCH.index("<information>") :]
    assert learned == [WHOLE.replace(block, ""), SEARCH.replace(block, ""), ""]
    assert torch.equal(marked.tokens, batch.tokens) and torch.equal(marked.attention_mask, batch.attention_mask)
    assert not (marked.behaviour_logp[batch.action_mask & ~marked.action_mask]).any()


def test_tokens_that_are_partly_in_a_block_are_left_out() -> None:
    """Of bytes, where a tag is many tokens, and of characters whose bytes are more than one."""
    tokenizer = build_tokenizer(512)
    text = "é <information>né</information>x"
    batch = rows([text], tokenizer)
    inside = own_information(batch, tokenizer)
    assert tokenizer.decode(batch.tokens[0][inside[0]]) == "<information>né</information>"
    said = {4: "ab<infor", 5: "mation>", 6: "c</information", 7: ">d"}
    glued = SimpleNamespace(decode=lambda ids: said[ids[0]])
    batch = rows(["four"], SimpleNamespace(encode=lambda text: [4, 5, 6, 7]))
    assert own_information(batch, glued).tolist() == [[False, True, True, True, True]]
    assert informed_spans("</information>a") == []


def logits_for(batch: TokenBatch) -> torch.Tensor:
    source = torch.Generator().manual_seed(3)
    shape = (*batch.tokens.shape, len(WORDS))
    return torch.randn(shape, generator=source, dtype=torch.float64).requires_grad_(True)


def gradient(batch: TokenBatch, targets: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Of the shipped loss, with respect to the logits that predict each token."""
    logp = logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0] * batch.action_mask
    (found,) = torch.autograd.grad(loss(SSRL, batch, TokenLogProbs(logp), 64), logits)
    return found


@pytest.fixture(scope="module")
def credit() -> TokenBatch:
    batch = rows([WHOLE, SEARCH, "corino", WHOLE.replace("answer>corino", "answer>corath"), "<information>"])
    batch = batch.replace(reference_logp=-0.75 * batch.action_mask.double())
    return credited(SSRL, score(batch, SSRL.rewards, context()))


def test_nothing_is_learned_from_information(credit: TokenBatch) -> None:
    logits = logits_for(credit)
    found = gradient(credit, credit.tokens, logits)
    masked = own_information(rows([e.completion for e in credit.episodes]), WORDS)
    assert masked.any() and not found[masked].any()
    assert found[credit.action_mask].abs().sum(-1).min() > 0
    other = torch.where(masked, (credit.tokens + 7) % len(WORDS), credit.tokens)
    assert torch.equal(gradient(credit, other, logits), found), "what stands there is no target"


def test_it_is_the_loss_of_rows_that_never_had_these_actions(credit: TokenBatch) -> None:
    """Denominators, too: as if the environment had said it."""
    bare = rows([e.completion for e in credit.episodes])
    masked = own_information(bare, WORDS)
    bare.action_mask = bare.action_mask & ~masked
    bare.behaviour_logp = bare.behaviour_logp * bare.action_mask
    bare = bare.replace(reference_logp=-0.75 * bare.action_mask.double())
    paid = SSRL.replace(rewards=SSRL.rewards[:2])
    bare = credited(paid, score(bare, paid.rewards, context()))
    logits = logits_for(credit)
    torch.testing.assert_close(gradient(bare, bare.tokens, logits), gradient(credit, credit.tokens, logits))


def test_pass_at_k_before_training() -> None:
    """1[c > 0] at k = n, c / n at k = 1, and without bias for 1 - (1 - p)^k."""
    for n in range(1, 7):
        for c in range(n + 1):
            right = torch.tensor([[i < c for i in range(n)]]).numpy()
            assert pass_at_k(right, n)[0] == float(c > 0) and pass_at_k(right, 1)[0] == pytest.approx(c / n)
        for k in range(1, n + 1):
            mean = sum(
                math.comb(n, c) * 0.3**c * 0.7 ** (n - c)
                * pass_at_k(torch.tensor([[i < c for i in range(n)]]).numpy(), k)[0]
                for c in range(n + 1)
            )  # fmt: skip
            assert mean == pytest.approx(1 - 0.7**k, abs=1e-12)
