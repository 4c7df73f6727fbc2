"""Written conversations have the tokens of the rendered template; texts begin as the tokenizer says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from etude.core.episodes import Problem, Segment
from etude.core.errors import ConfigError
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.experience.data import Demonstrations, Pairs
from etude.experience.rollout import fresh, rollout
from etude.policies.byte_tokenizer import build_tokenizer
from etude.policies.chat import opening, turn
from etude.policies.language import LanguagePolicy
from etude.policies.sampling import Sampling
from etude.policies.templates import end_of_turn
from etude.policies.written import written
from language_toys import Toy, random_model

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{% for m in messages %}{% set c = '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n'"
    " + m['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set c = bos_token + c %}{% endif %}{{ c }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% for m in messages %}{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + m['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + m['content'] + eos_token }}{% endif %}{% endfor %}"
)
THOUGHTS = (  # as R1's distillations: the opened turn begins with a thought that the template leaves out of answers
    "{{ bos_token }}{% for m in messages %}{{ '<|' + m['role'] + '|>' }}"
    "{% if m['role'] == 'assistant' %}{{ m['content'].split('</think>')[-1] + eos_token }}{% else %}{{ m['content'] }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|><think>\n' }}{% endif %}"
)
TEMPLATES: dict[str, tuple[str, str]] = {  # and what ends a turn
    "chatml": (CHATML, "<|im_end|>"),
    "llama-3": (LLAMA3, "<|eot_id|>"),
    "gemma": (GEMMA, "<end_of_turn>"),
    "mistral": (MISTRAL, "<|end|>"),
    "thoughts": (THOUGHTS, "<|end|>"),
}
SPECIAL = ("<s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
           "<start_of_turn>", "<end_of_turn>")  # fmt: skip
ANSWERS = ("4", "\nfour, as 2 + 2 is", " spaced ")


def tokenizer_with(template: str | None, begins: bool = False) -> Any:
    """The built-in tokenizer with the marks of several families, and a beginning-of-text token."""
    from tokenizers.processors import TemplateProcessing

    words = build_tokenizer(256)
    words.add_tokens(list(SPECIAL), special_tokens=True)
    words.bos_token, words.chat_template = "<s>", template
    if begins:
        words._tokenizer.post_processor = TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", words.bos_token_id)]
        )
    return words


def policy_with(template: str | None, begins: bool = False) -> LanguagePolicy:
    return LanguagePolicy(random_model(vocab_size=320), tokenizer_with(template, begins))


def rendered(policy: LanguagePolicy, *messages: tuple[str, str]) -> list[int]:
    shown = [{"role": r, "content": c} for r, c in messages]
    return list(policy.tokenizer.apply_chat_template(shown, tokenize=True, return_dict=False))


def learned(tokens: Sequence[int], mask: Sequence[int]) -> list[int]:
    return [t for t, m in zip(tokens, mask) if m]


@pytest.mark.first
@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("answer", ANSWERS)
def test_a_demonstration_has_the_tokens_of_the_template(name: str, answer: str) -> None:
    template, mark = TEMPLATES[name]
    policy = policy_with(template)
    problem = Problem("1", [{"role": "user", "content": "2+2?"}], info={"demonstration": answer})
    (episode,) = Demonstrations().collect([problem], Context(Toy(), policy, Stream(0)))
    end = policy.tokenizer.convert_tokens_to_ids(mark)
    assert episode.tokens == rendered(policy, ("user", "2+2?"), ("assistant", answer))
    mask = [m for s in episode.segments for m in s.action_mask]
    said = learned(episode.tokens, mask)
    assert said[-1] == end and said.count(end) == 1 and policy.decode(said).strip() == answer.strip()
    assert set(mask[mask.index(1) : len(mask) - mask[::-1].index(1)]) == {1}, "one turn, without gaps"
    assert end in policy.end_ids, "and the policy stops there when it samples"


@pytest.mark.parametrize("name", ["chatml", "llama-3", "gemma", "mistral"])
def test_every_turn_of_a_conversation_is_learned(name: str) -> None:
    template, mark = TEMPLATES[name]
    policy = policy_with(template)
    turns = [("user", "a"), ("assistant", "b b"), ("user", "c"), ("assistant", "d")]
    segments = [Segment(r, t, info={"message": True} if r == "user" else {}) for r, t in turns]  # type: ignore[arg-type]
    episode = written(Problem("1", "?"), segments, 0, policy)
    assert episode.tokens == rendered(policy, *turns)
    end = policy.tokenizer.convert_tokens_to_ids(mark)
    for segment in (segments[1], segments[3]):
        said = learned(segment.tokens, segment.action_mask)
        assert said[-1] == end and policy.decode(said).strip() == segment.text


@pytest.mark.slow
def test_pairs_have_the_tokens_of_the_template() -> None:
    policy = policy_with(LLAMA3)
    prompt = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    problem = Problem("1", prompt, info={"chosen": "A", "rejected": "B"})
    pair = Pairs().collect([problem], Context(Toy(), policy, Stream(0)))
    for episode, answer in zip(pair, "AB", strict=True):
        assert episode.tokens == rendered(policy, ("system", "S"), ("user", "U"), ("assistant", answer))
        assert policy.tokenizer.eos_token_id not in episode.tokens


@pytest.mark.slow
def test_what_is_learned_follows_what_is_sampled_from() -> None:
    for template in (CHATML, LLAMA3, GEMMA, MISTRAL):
        policy = policy_with(template)
        asked = Segment("user", "2+2?", info={"message": True})
        (prompt,) = opening([asked], policy)
        episode = written(Problem("1", "?"), [asked, Segment("assistant", "4")], 0, policy)
        assert episode.segments[0].tokens == prompt


@pytest.mark.first
@pytest.mark.parametrize(
    ("begins", "add_bos", "expected"),
    [(False, None, 0), (True, None, 1), (False, True, 1), (True, True, 1), (True, False, 0)],
)
def test_texts_begin_as_the_tokenizer_or_the_task_says(begins: bool, add_bos: bool | None, expected: int) -> None:
    policy, task = policy_with(None, begins), Toy(add_bos=add_bos, max_tokens=2)
    begin, problem = [policy.tokenizer.bos_token_id] * expected, Problem("1", "x=", info={"demonstration": "y"})
    (shown,) = Demonstrations().collect([problem], Context(task, policy, Stream(0)))
    assert shown.tokens == begin + policy.encode("x=") + policy.encode("y") + [policy.tokenizer.eos_token_id]
    (sampled,) = rollout(fresh([problem], 1, Stream(0)), Context(task, policy, Stream(0)), Sampling(max_tokens=2))
    assert sampled.segments[0].tokens == begin + policy.encode("x=")
    if begins and add_bos is None:
        assert sampled.segments[0].tokens == policy.tokenizer.encode("x="), "as the tokenizer says"


def test_a_text_that_begins_with_the_token_itself_does_not_get_it_twice() -> None:
    policy = policy_with(None, begins=True)
    assert opening([Segment("user", "<s>x=")], policy) == [policy.encode("<s>x=")]
    assert opening([Segment("user", "a"), Segment("user", "b")], policy) == [
        [policy.tokenizer.bos_token_id, *policy.encode("a")], policy.encode("b")
    ]  # fmt: skip


def test_a_beginning_that_the_tokenizer_does_not_have() -> None:
    policy = LanguagePolicy(random_model(), build_tokenizer(256))
    with pytest.raises(ConfigError, match="add_bos asks for a beginning-of-text token and the tokenizer has none"):
        opening([Segment("user", "x")], policy, True)


def test_a_template_that_changes_what_is_said_has_no_end_of_turn_and_is_refused() -> None:
    """The first mark of the whole rendering is none that ends a turn."""
    policy = policy_with(CHATML.replace("m['content']", "m['content'] | upper"))
    assert end_of_turn(policy.tokenizer) is None
    asked = Segment("user", "2 + 2?", info={"message": True})
    with pytest.raises(ConfigError, match="does not show what the assistant says as it is"):
        turn([asked], Segment("assistant", "four"), policy)
