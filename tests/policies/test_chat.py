"""Conversations: the opening and every reply go through the tokenizer's chat template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from etude.core.episodes import Problem, Segment, StopReason
from etude.core.errors import ConfigError
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.core.task import SingleTurn, StepResult
from etude.experience.rollout import fresh, rollout
from etude.policies.byte_tokenizer import build_tokenizer
from etude.policies.chat import opening, reply
from etude.policies.sampling import Completion, Sampling
from language_toys import Scripted, Toy, random_policy

CHATML = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
THINKING = (  # the last turn of the assistant shows its thoughts, earlier ones do not
    "{% for m in messages %}<{{ m.role }}>{% if loop.last and m.role == 'assistant' %}(hm){% endif %}"
    "{{ m.content | trim }}<|end|>\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
UNMARKED = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{{ 'assistant: ' if add_generation_prompt else '' }}"
)
USERS_ONLY = "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}{% endfor %}x"


def policy_with(template: str | None) -> Any:
    policy = random_policy()
    policy.tokenizer = build_tokenizer(256)
    policy.tokenizer.chat_template = template
    return policy


def messages(*turns: tuple[str, str]) -> list[Segment]:
    return [Segment(role, text, info={"message": True}) for role, text in turns]  # type: ignore[arg-type]


def shown(policy: Any, tokens: Sequence[Sequence[int]]) -> str:
    return policy.tokenizer.decode([t for part in tokens for t in part])


def test_plain_text_is_encoded_as_it_is() -> None:
    policy = policy_with(CHATML)
    assert opening([Segment("user", "2+2=")], policy) == [policy.encode("2+2=")]


def test_an_opening_goes_through_the_template() -> None:
    policy = policy_with(CHATML)
    tokens = opening(messages(("system", "Be brief."), ("user", "hi")), policy)
    assert tokens[0] == [] and shown(policy, tokens) == "<system>Be brief.<|end|>\n<user>hi<|end|>\n<assistant>"


def test_a_conversation_without_a_template_is_refused() -> None:
    with pytest.raises(ConfigError, match="no chat template: set `chat_template` in its tokenizer_config"):
        opening(messages(("user", "hi")), policy_with(None))


@pytest.mark.slow
def test_a_template_that_refuses_a_role_is_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"refuses a conversation of the roles user, tool: no tools\."):
        opening(messages(("user", "hi"), ("tool", "3")), policy_with(USERS_ONLY))


@pytest.mark.parametrize("template", [CHATML, THINKING])
@pytest.mark.parametrize("closed", [True, False])
def test_a_reply_continues_the_sampled_turn(template: str, closed: bool) -> None:
    """History + sampled tokens + reply reads as the template renders the whole conversation."""
    policy = policy_with(template)
    start = messages(("user", "guess"))
    said = "ask b1" + ("<|end|>" if closed else "")
    answer = messages(("tool", "no"), ("user", "go on"))
    text = shown(policy, opening(start, policy)) + said + shown(policy, reply(answer, policy, closed))
    everything = [{"role": r, "content": c} for r, c in
                  [("user", "guess"), ("assistant", "ask b1"), ("tool", "no"), ("user", "go on")]]  # fmt: skip
    assert text == policy.tokenizer.apply_chat_template(everything, tokenize=False, add_generation_prompt=True)


def test_a_template_without_end_marks() -> None:
    policy = policy_with(UNMARKED)
    for closed in (True, False):
        assert shown(policy, reply(messages(("user", "no")), policy, closed)) == "\nuser: no\nassistant: "


def test_no_observation_is_no_token() -> None:
    assert reply([], policy_with(CHATML), True) == []


class Chat(SingleTurn):
    """Two turns of a conversation."""

    def reset(self, problem: Problem, seed: int) -> list[Segment]:
        self.turn = 0
        return messages(("user", "start"))

    def step(self, segment: Segment) -> StepResult:
        self.turn += 1
        return StepResult([Segment("user", f"answer {self.turn}")], 1.0, terminated=self.turn == 3)


def test_a_rollout_of_a_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, task = policy_with(CHATML), Toy(world=Chat, max_turns=3)
    words = iter([[60, 61, 1], [62, 63], [64, 1]])

    def say(seen: list[int]) -> Completion:
        said = next(words)
        stop = StopReason.END_OF_TEXT if said[-1] == 1 else StopReason.MAX_TOKENS
        return Completion(said, [-1.0] * len(said), [], stop)

    monkeypatch.setattr(policy, "converse", lambda: Scripted(say))
    (episode,) = rollout(fresh(task.problems("train")[:1], 1, Stream(0)), Context(task, policy, Stream(0)), Sampling())
    a, b, c = (policy.tokenizer.decode(t) for t in ([60, 61], [62, 63], [64]))
    assert policy.tokenizer.decode(episode.tokens) == (
        f"<user>start<|end|>\n<assistant>{a}<|end|>\n<user>answer 1<|end|>\n<assistant>{b}"
        f"<|end|>\n<user>answer 2<|end|>\n<assistant>{c}<|end|>"
    )
    masks = [m for s in episode.segments for m in s.action_mask]
    assert [t for t, m in zip(episode.tokens, masks) if m] == [60, 61, 1, 62, 63, 64, 1]
