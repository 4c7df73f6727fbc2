"""Text2Grad: words find their tokens, scores are conserved, and what nobody says leaves the divergence alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from etude.core.batches import TokenBatch
from etude.core.episodes import Episode
from etude.core.errors import ConfigError
from etude.core.registry import get_method
from etude.core.slots import Context
from etude.methods.preference.text2grad.matching import matched, read_scores
from etude.methods.preference.text2grad.parts import (
    AdaptiveFullKLPenalty,
    CritiqueModel,
    TaskCritic,
    WordCritic,
    WordRewards,
    Words,
    full_kl,
)
from etude.rewards.kl import AdaptiveKLPenalty
from etude.tasks.language.digest import IMPORTANCE, Digest, critique, digest, words_of
from language_toys import Toy, make_loop, random_policy

pytestmark = pytest.mark.usefixtures("one_thread")


class Told(WordCritic):
    """Says the same words of every completion."""

    said: tuple[tuple[str, float], ...] = ()

    def words(self, episodes: Sequence[Episode], context: Context) -> list[Words]:
        return [list(self.said) for _ in episodes]


class OfTheLast(WordCritic):
    """Says of each completion the text of its last token."""

    def words(self, episodes: Sequence[Episode], context: Context) -> list[Words]:
        found: list[Words] = []
        for episode in episodes:
            ids = [t for s in episode.segments for t, on in zip(s.tokens, s.action_mask) if on]
            texts = [context.policy.tokenizer.decode([i]) for i in ids]
            found.append([(text, 0.0) for text in texts[:-1]] + [(texts[-1], 0.5)])
        return found


# Words and tokens


@pytest.mark.parametrize(
    ("words", "tokens", "scores"),
    [
        ([("abcdefghi", 1.0)], list("abcdefghi"), [1.0] * 9),
        ([("abcdefghij", 1.0)], list("abcdefghij"), [0.0] * 10),  # ten tokens
        ([("a", 1.0)], [*"xxxxx", "a"], [0, 0, 0, 0, 0, 1.0]),
        ([("a", 1.0)], [*"xxxxxx", "a"], [0.0] * 7),  # six are passed over
        ([("no", -1.0), ("a", 1.0)], ["a", "b"], [1.0, 0]),  # given up, and the next looked for in its place
        ([("a", 1.0), ("a", -1.0)], ["a", "a", "."], [1.0, -1.0, 0]),
        ([("B", 1.0)], ["", " b", ","], [0, 1.0, 0]),
        ([("don't,", 1.0)], [" don", "'", "t", ","], [1.0, 0, 1.0, 0]),  # punctuation is paid nothing
        ([], ["a"], [0.0]),
        ([("a", 1.0)], [], []),
    ],
)
def test_words_find_their_tokens_from_the_left(words: Words, tokens: list[str], scores: list[float]) -> None:
    assert matched(words, tokens) == scores


@pytest.mark.parametrize("text", ["", "no list", "|a", "|a+ b", "|+"])
def test_what_does_not_parse_says_nothing(text: str) -> None:
    assert read_scores(text) == []


def test_scores_are_conserved_where_words_are_whole_tokens() -> None:
    """Good words less poor ones of what an annotator writes of digest's answers, on their own tokens."""
    problem = digest.problems("test")[0]
    shown = words_of(problem)
    other = next(w for w in IMPORTANCE if w not in shown)
    keys = [w for w in shown if IMPORTANCE[w] == 3]
    for answer in (keys[0] + keys[0] + other, shown[:8], other * 3 + keys[0], keys[0]):
        text = critique(shown, answer)
        assert digest.critique(problem, answer) == text
        marks, words = text.partition("|")[0], read_scores(text)
        good, poor = marks.count("*"), marks.count("!") + marks.count("?")
        assert "".join(w for w, _ in words) == answer and good <= 2 and poor <= 2
        assert sum(matched(words, [*answer, ".", ""])) == good - poor == sum(s for _, s in words)
    careless = critique(shown, keys[0] + other, careless=True)
    assert read_scores(careless) == [(keys[0], 0.0), (other, -1.0)]


def test_problems_of_critiques_ask_for_what_is_wrong_with_an_answer() -> None:
    asked = Digest(asks="critiques").problems("train")
    told = [asked[i] for i in range(60)]
    for problem in told:
        answer = str(problem.prompt).removesuffix("~").partition(">")[2]
        wanted = {critique(words_of(problem), answer), critique(words_of(problem), answer, careless=True)}
        assert problem.info["demonstration"] in wanted and 1 <= len(answer) <= 8
    left_out = [p for p in told if p.info["demonstration"] != digest.critique(p, str(p.prompt)[17:-1])]
    assert 0 < len(left_out) < 20


# Rewards


@pytest.fixture(scope="module")
def rows() -> tuple[TokenBatch, Context]:
    """Completions of a toy policy whose reference is another one."""
    policy: Any = random_policy(seed=0)
    loop = make_loop(get_method("ppo-rlhf").replace(rewards=get_method("ppo").rewards, problems=2), Toy(), policy)
    context = loop.context(loop.method, loop.stream)
    batch = loop.gatherer.gather(loop.method, 2, context)
    policy.weights.reference = random_policy(seed=1).model
    batch.reference_logp = policy.reference_logp(batch)
    batch.rewards = batch.rewards.double()
    return batch, context


def test_a_score_of_the_last_token_alone_is_ppo(rows: tuple[TokenBatch, Context]) -> None:
    batch, context = rows
    ends = (batch.action_mask.cumsum(1) == batch.action_counts[:, None]) & batch.action_mask
    tokenizer = context.policy.tokenizer
    texts = ["" if i in tokenizer.all_special_ids else tokenizer.decode([i]) for i in batch.tokens[ends].tolist()]
    said = torch.tensor([any(map(str.isalnum, text)) for text in texts])
    paid = WordRewards(critic=OfTheLast()).bind().shape_in(batch, context)
    assert paid[ends].tolist() == [0.5 if on else 0.0 for on in said.tolist()] and bool(said.any())
    assert not paid[~ends].any()


def test_a_critic_without_a_word_leaves_the_divergence_alone(rows: tuple[TokenBatch, Context]) -> None:
    batch, context = rows
    assert not WordRewards(critic=Told()).bind().shape_in(batch, context).any()


def test_a_model_that_writes_critiques_is_asked_about_each_completion(rows: tuple[TokenBatch, Context]) -> None:
    batch, context = rows
    asked: list[str] = []

    def generate(prompts: list[str], sampling: Any, draws: Any) -> list[Any]:
        assert sampling.temperature == 0 and len(draws) == len(prompts)
        asked.extend(prompts)
        return [SimpleNamespace(tokens="a?|a- b+" if i else "nothing") for i in range(len(prompts))]

    part = CritiqueModel(model="RUN").bind()
    part.made["model"] = SimpleNamespace(encode=str, generate=generate, decode=str)
    found = part.words(batch.episodes, context)
    assert found == [[]] + [[("a", -1.0), ("b", 1.0)]] * (len(batch) - 1)
    assert asked == [f"{e.problem.prompt}{e.completion}~" for e in batch.episodes]
    with pytest.raises(ConfigError, match="no model that writes critiques"):
        get_method("text2grad").check()
    assert "gives" not in str(TaskCritic().lacks(digest)) and "critique(problem" in str(TaskCritic().lacks(Toy()))


def test_the_divergence_over_all_words_is_what_sampled_ratios_estimate(rows: tuple[TokenBatch, Context]) -> None:
    """Against the definition at every token; the coefficient follows it as that of sampled ones."""
    batch, context = rows
    policy = context.policy
    part = AdaptiveFullKLPenalty(coefficient=0.5, target=1.0, horizon=len(batch)).bind()
    paid = part.shape_in(batch, context)
    kept = random_policy(seed=1)
    p, q = (m.evaluate(batch, {"logits"}).logits.detach().softmax(-1).double() for m in (policy, kept))
    exact = (p * (p / q).log()).sum(-1) * batch.action_mask
    torch.testing.assert_close(paid, -0.5 * exact, atol=1e-4, rtol=1e-4)
    own = AdaptiveKLPenalty(coefficient=0.5, target=1.0, horizon=len(batch)).bind()
    own.paid(exact, batch)
    assert part.state["coefficient"] == pytest.approx(own.state["coefficient"]) != 0.5
    logp = torch.randn(4, generator=torch.Generator().manual_seed(0)).log_softmax(0)
    assert float(full_kl(logp, logp)) == 0


def test_late_tokens_count_less_where_it_is_asked_for() -> None:
    assert (WordRewards().factors(1000) == 1).all()
    shrinking = WordRewards(shrink=1.0).factors(200)
    assert (shrinking[:48] == 1).all() and (shrinking[48:].diff() < 0).all()
    assert shrinking[59].item() == pytest.approx(2 / (1 + math.exp(12 / 48))) and shrinking[-1] < 0.2
