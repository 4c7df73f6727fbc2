"""Prompts as a model sees them: through its chat template, as `apply_chat_template` of transformers renders them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from etude.core.episodes import Problem, Segment
from etude.core.errors import ConfigError
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.core.task import LanguageTask, SingleTurn
from etude.experience.data import Demonstrations, Pairs
from etude.experience.rollout import fresh, rollout
from etude.policies.byte_tokenizer import build_tokenizer
from etude.policies.chat import opening
from etude.policies.language import LanguagePolicy
from etude.policies.sampling import Sampling
from etude.policies.showing import shown
from etude.tasks.language.formats import problem
from language_toys import Toy, random_model

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)
TOOLS = (  # as Qwen's: tools before the system's message, calls as JSON between tags, nothing for content that is null
    "{% if tools %}{{ '<|im_start|>system\n' }}{% for t in tools %}{{ t | tojson }}{% endfor %}{{ '<|im_end|>\n' }}"
    "{% endif %}{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.content %}{{ m.content }}{% endif %}"
    "{% for c in m.tool_calls or [] %}{{ '<tool_call>' + (c.function | tojson) + '</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SEEING = (  # as templates of models that see: text, or parts
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{{ '[' + p.text + ']' }}{% endfor %}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% if m.role == 'user' %}{{ '[INST] ' + m.content }}"
    "{{ ' [/INST]' }}{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}"
)
TOOL = {"type": "function", "function": {"name": "add", "description": "a + b", "parameters": {"type": "object"}}}
ASK = {"role": "user", "content": "2+2?"}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add", "arguments": {"a": 2}}}]}
FOUND = {"role": "tool", "name": "add", "tool_call_id": "1", "content": "4"}
FOUR = {"role": "assistant", "content": "4"}
PARTS = {"role": "user", "content": [{"type": "text", "text": "2+"}, {"type": "text", "text": "2?"}]}


def policy_with(template: str | None) -> Any:
    words = build_tokenizer(256)
    words.add_tokens(["<s>", "<|im_start|>", "<|im_end|>"], special_tokens=True)
    words.bos_token, words.chat_template = "<s>", template
    return LanguagePolicy(random_model(context=512, vocab_size=320), words)


def rendered(policy: Any, messages: Sequence[dict[str, Any]], opened: bool = True, **given: Any) -> list[int]:
    """What transformers makes of it."""
    return list(
        policy.tokenizer.apply_chat_template(
            list(messages), tokenize=True, return_dict=False, add_generation_prompt=opened, **given
        )
    )


def seen(policy: Any, asked: Problem, **fields: Any) -> list[int]:
    task = Toy(**fields)
    segments = shown(SingleTurn(task).reset(asked, 0), task, policy)
    return [t for part in opening(segments, policy, task.add_bos) for t in part]


def row(**values: Any) -> Problem:
    """A row of a data file."""
    form = ("messages",) if "messages" in values else ("prompt", "chosen", "rejected") if "chosen" in values else (
        "prompt",
    )  # fmt: skip
    return problem(values, form, "1")


# Text


@pytest.mark.parametrize("template", [CHATML, TOOLS, SEEING, MISTRAL])
@pytest.mark.parametrize("chat", ["auto", "always"])
def test_text_is_a_users_message(template: str, chat: str) -> None:
    policy = policy_with(template)
    assert seen(policy, Problem("1", "2+2?"), chat=chat) == rendered(policy, [ASK])


@pytest.mark.slow
def test_text_stays_text_without_a_template_or_when_asked(tmp_path: Path) -> None:
    plain, talking = policy_with(None), policy_with(CHATML)
    assert seen(plain, Problem("1", "2+2?")) == plain.encode("2+2?")
    assert seen(talking, Problem("1", "2+2?"), chat="never") == talking.encode("2+2?")


@pytest.mark.parametrize("template", [CHATML, TOOLS, SEEING])
def test_the_systems_message_comes_first(template: str, tmp_path: Path) -> None:
    policy = policy_with(template)
    (tmp_path / "brief.txt").write_text("\nBe brief.\n")
    system = {"role": "system", "content": "Be brief."}
    path = str(tmp_path / "brief.txt")
    assert seen(policy, Problem("1", "2+2?"), system=path) == rendered(policy, [system, ASK])
    assert seen(policy, Problem("1", [ASK]), system=path) == rendered(policy, [system, ASK])


def test_arguments_reach_the_template() -> None:
    policy = policy_with(CHATML)
    tokens = seen(policy, Problem("1", "2+2?"), template_arguments=("enable_thinking=false",))
    assert tokens == rendered(policy, [ASK], enable_thinking=False)
    assert tokens != rendered(policy, [ASK])
    own = problem({"prompt": "2+2?", "chat_template_kwargs": {"enable_thinking": True}}, ("prompt",), "1")
    assert seen(policy, own, template_arguments=("enable_thinking=false",)) == rendered(policy, [ASK]), "a row's win"


@pytest.mark.slow
def test_every_turn_of_an_environment_goes_through_the_template() -> None:
    class Twice(SingleTurn):
        def step(self, segment: Segment) -> Any:
            from etude.core.task import StepResult

            self.turns = getattr(self, "turns", 0) + 1
            return StepResult([Segment("user", "again")], 0.0, terminated=self.turns == 2)

    policy = policy_with(CHATML)
    task = Toy(world=Twice, max_turns=2, max_tokens=3)
    context = Context(task, policy, Stream(0))
    (episode,) = rollout(fresh(task.problems("train")[:1], 1, Stream(0)), context, Sampling(max_tokens=3))
    opened, said, again = (policy.tokenizer.decode(s.tokens) for s in episode.segments[:3])
    assert opened == "<|im_start|>user\none:<|im_end|>\n<|im_start|>assistant\n"
    assert again.endswith("<|im_start|>user\nagain<|im_end|>\n<|im_start|>assistant\n") and said not in again


def test_what_is_learned_of_text_has_the_tokens_of_the_template() -> None:
    policy = policy_with(CHATML)
    worked = Problem("1", "2+2?", info={"demonstration": "4", "chosen": "4", "rejected": "5"})
    context = Context(Toy(), policy, Stream(0))
    (episode,) = Demonstrations().collect([worked], context)
    assert episode.tokens == rendered(policy, [ASK, FOUR], opened=False)
    for pair, said in zip(Pairs().collect([worked], context), "45", strict=True):
        assert pair.tokens == rendered(policy, [ASK, {"role": "assistant", "content": said}], opened=False)
        assert pair.reward == (said == "4")


# Messages


@pytest.mark.parametrize("role", ["system", "developer", "user"])
@pytest.mark.parametrize("template", [CHATML, TOOLS, SEEING])
def test_roles_are_shown_as_they_are(template: str, role: str) -> None:
    policy = policy_with(template)
    messages = [{"role": role, "content": "Be brief."}, ASK]
    assert seen(policy, row(prompt=messages)) == rendered(policy, messages)


@pytest.mark.slow
def test_parts_of_content() -> None:
    """As they are where the template shows parts; joined where it knows text alone, which transformers cannot show."""
    seeing, text = policy_with(SEEING), policy_with(CHATML)
    assert seen(seeing, row(prompt=[PARTS])) == rendered(seeing, [PARTS])
    assert "[2+][2?]" in seeing.tokenizer.decode(seen(seeing, row(prompt=[PARTS])))
    assert seen(text, row(prompt=[PARTS])) == rendered(text, [ASK])
    with pytest.raises(TypeError):
        rendered(text, [PARTS])


def test_tools_calls_and_null_content() -> None:
    policy = policy_with(TOOLS)
    messages = [ASK, CALL, FOUND]
    assert seen(policy, row(prompt=messages, tools=[TOOL])) == rendered(policy, messages, tools=[TOOL])
    assert seen(policy, row(prompt="2+2?", tools=[TOOL])) == rendered(policy, [ASK], tools=[TOOL])


@pytest.mark.parametrize("last", [CALL, FOUR, {**CALL, "content": "Let me see."}, {**FOUR, "content": [
    {"type": "text", "text": "4"}]}])  # fmt: skip
def test_an_answer_that_calls_tools_is_learned_whole(last: dict[str, Any]) -> None:
    policy = policy_with(TOOLS)
    history = [ASK, CALL, FOUND]
    said = {**last, "content": "4"} if isinstance(last["content"], list) else last
    worked = row(messages=[*history, last], tools=[TOOL])
    (episode,) = Demonstrations().collect([worked], Context(Toy(), policy, Stream(0)))
    assert episode.tokens == rendered(policy, [*history, said], opened=False, tools=[TOOL])
    for place, segment in ((1, episode.segments[1]), (3, episode.segments[3])):  # both turns of the assistant
        messages = [*history, said]
        before = rendered(policy, messages[:place], tools=[TOOL])
        after = rendered(policy, messages[: place + 1], opened=False, tools=[TOOL])[len(before) :]
        learned = [t for t, m in zip(segment.tokens, segment.action_mask) if m]
        assert learned == after[: after.index(policy.tokenizer.convert_tokens_to_ids("<|im_end|>")) + 1]


def test_chosen_and_rejected_calls() -> None:
    policy = policy_with(TOOLS)
    pair = row(prompt=[ASK], chosen=[CALL], rejected=[FOUR], tools=[TOOL])
    good, bad = Pairs().collect([pair], Context(Toy(), policy, Stream(0)))
    assert good.tokens == rendered(policy, [ASK, CALL], opened=False, tools=[TOOL]) and good.reward == 1
    assert bad.tokens == rendered(policy, [ASK, FOUR], opened=False, tools=[TOOL]) and bad.reward == 0


# Refusals


@pytest.mark.parametrize(
    ("template", "asked", "fields", "sentence"),
    [
        (None, Problem("1", "x"), {"chat": "always"}, "chat=always needs a chat template, and the model's"),
        (CHATML, Problem("1", [ASK]), {"chat": "never"}, "conversations, which chat=never cannot show: take it out."),
        (None, Problem("1", "x"), {"template_arguments": ("a=1",)}, "has no chat template), and nothing can show a."),
        (CHATML, Problem("1", "x"), {"chat": "never", "system": "s.txt"}, "(chat=never), and nothing can show system."),
        (None, row(prompt="x", tools=[TOOL]), {}, "has no chat template), and nothing can show tools."),
        (MISTRAL, row(prompt="x", tools=[TOOL]), {}, "chat template does not read 'tools', so nothing would show it."),
        (MISTRAL, row(prompt=[ASK, CALL, FOUND]), {}, "does not read 'tool_calls', so nothing would show it."),
        (CHATML, Problem("1", "x"), {"template_arguments": ("enable_thinkin=1",)}, "Did you mean 'enable_thinking'?"),
        (CHATML, Problem("1", "x"), {"template_arguments": ("thinking",)}, "takes NAME=VALUE, as in enable_"),
        (CHATML, Problem("1", "x"), {"system": "none.txt"}, "cannot be read from none.txt: No such file or directory."),
        (CHATML, Problem("1", [{"role": "developer", "content": "y"}, ASK]), {"system": "s.txt"},
         "begins with a developer message of its own, and system=s.txt gives another one: leave one of them out."),
        (MISTRAL, Problem("1", [ASK, ASK]), {}, "conversation of the roles user, user: roles must alternate."),
    ],
)  # fmt: skip
def test_what_cannot_be_shown_is_refused(
    template: str | None, asked: Problem, fields: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError) as error:
        seen(policy_with(template), asked, **fields)
    assert sentence in str(error.value)


def test_a_systems_message_that_is_empty(tmp_path: Path) -> None:
    (tmp_path / "s.txt").write_text(" \n")
    with pytest.raises(ConfigError, match=r"s.txt is empty: it must hold the system's message."):
        seen(policy_with(CHATML), Problem("1", "x"), system=str(tmp_path / "s.txt"))


def test_the_fields_are_of_every_task_of_language() -> None:
    assert {"chat", "system", "template_arguments"} <= set(LanguageTask().fields())
