"""Tools in episodes: what is called is answered, in tokens that follow what was sampled, whatever the template is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from my_handy_tools import add, find

from etude.core.episodes import Episode, Problem, Segment, StopReason
from etude.core.errors import ConfigError
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.core.task import SingleTurn, StepResult
from etude.experience.calls import Call, CallForm, FencedCalls, LineCalls, Misread, NamedCalls, TaggedCalls
from etude.experience.rollout import fresh, rollout
from etude.experience.toolbox import ToolCalls
from etude.experience.tools.schemas import described, objection
from etude.policies.byte_tokenizer import build_tokenizer
from etude.policies.guarding import takes_tools, turn_marks
from etude.policies.sampling import Completion, Sampling
from language_toys import Scripted, Toy, random_model, random_policy

FILE = str(Path(__file__).parent / "my_handy_tools.py")
QWEN = (  # as Qwen's: tools in the system's message, calls between tags, answers as a user's
    "{% if tools %}<|im_start|>system\nTools:{% for t in tools %}\n{{ t | tojson }}{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}"
    "\n<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
    "<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TAGS = (  # as Mistral's: words between brackets, which are ordinary text
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% elif m.role == 'tool' %}[TOOL_RESULTS] {{ m.content }} [/TOOL_RESULTS]"
    "{% else %} {{ m.content }}<|end|>{% endif %}{% endfor %}"
)
REFUSES = (
    "{% for m in messages %}{% if m.role not in ('user', 'assistant') %}{{ raise_exception('no') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEMPLATES = {"chatml": (QWEN, "<|im_end|>"), "tags": (TAGS, "<|end|>"), "refuses": (REFUSES, "<|im_end|>")}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>'


class Told(Toy):
    stop = ("STOP",)


@pytest.fixture(scope="module")
def policy() -> Any:
    words = build_tokenizer(4096)
    words.add_tokens(["<|im_start|>", "<|im_end|>"], special_tokens=True)
    made = random_policy()
    made.model = random_model(vocab_size=320, context=4096)
    made.tokenizer = words
    return made


def played(policy: Any, template: str | None, says: list[str], end: str, **fields: Any) -> Episode:
    """An episode in which the policy says these turns, each sampled as tokens of its own choice."""
    from etude.policies.language import LanguagePolicy

    words = policy.tokenizer
    words.chat_template = template
    able = LanguagePolicy(policy.model, words)
    turns = iter(says)

    def say(seen: list[int]) -> Completion:
        tokens = [t for c in next(turns) for t in words.encode(c, add_special_tokens=False)]  # letter by letter
        tokens.append(words.convert_tokens_to_ids(end))
        return Completion(tokens, [-1.0] * len(tokens), [], StopReason.END_OF_TEXT)

    able.converse = lambda: Scripted(say)  # type: ignore[method-assign, assignment]
    box = ToolCalls(functions=FILE, seconds=fields.pop("seconds", 20.0))
    task = Told(("2+3?",), scoring=lambda p, c: float("5" in c), tools=box, **fields)
    (episode,) = rollout(fresh(task.problems("train"), 1, Stream(0)), Context(task, able, Stream(0)), Sampling())
    return episode


def text(policy: Any, tokens: list[int]) -> str:
    return str(policy.tokenizer.decode(tokens))


@pytest.mark.slow
@pytest.mark.parametrize("name", TEMPLATES)
def test_what_was_sampled_is_never_rewritten(policy: Any, name: str) -> None:
    template, end = TEMPLATES[name]
    says = [f"Hm. {CALL}", f"{CALL}{CALL}", "It is 5."]
    episode = played(policy, template, says, end)
    sampled = [[t for t, m in zip(s.tokens, s.action_mask) if m] for s in episode.segments if any(s.action_mask)]
    letters = [[t for c in s for t in policy.tokenizer.encode(c)] for s in says]
    assert [s[:-1] for s in sampled] == letters, "token for token, though the text has a shorter encoding"
    assert all(s.action_mask in ([1] * len(s.tokens), [0] * len(s.tokens)) for s in episode.segments)
    assert [s.role for s in episode.segments] == ["user", "assistant", "tool", "assistant", "tool", "tool", "assistant"]
    assert episode.reward == 1.0 and episode.stop is StopReason.TERMINATED
    assert episode.info["calls"] == 3 and episode.info["failed_calls"] == 0
    shown = text(policy, episode.tokens)
    messages = [{"role": "assistant", "content": f"Hm. {CALL}"}, {"role": "tool", "content": "5"},
                {"role": "assistant", "content": f"{CALL}{CALL}"}, {"role": "tool", "content": "5"},
                {"role": "tool", "content": "5"}, {"role": "assistant", "content": "It is 5."}]  # fmt: skip
    if name == "chatml":
        tools = [described(f).schema for f in (add, find)]
        whole = policy.tokenizer.apply_chat_template(
            [{"role": "user", "content": "2+3?"}, *messages], tokenize=False, tools=tools
        )
        assert shown.partition("2+3?")[2] + "\n" == whole.partition("2+3?")[2], "as the template renders the whole"
        assert '"add"' in shown.partition("<|im_start|>user")[0] and "You can call" not in shown
    else:
        assert "You can call these tools:" in shown.partition("2+3?")[0], "told in words where no template says it"
    if name == "tags":
        assert "[TOOL_RESULTS] 5 [/TOOL_RESULTS][TOOL_RESULTS] 5 [/TOOL_RESULTS]It is 5." in shown
    if name == "refuses":
        answer = "<tool_response>\n5\n</tool_response>"
        assert f"<|im_start|>user\n{answer}\n{answer}<|im_end|>\n<|im_start|>assistant\nIt is 5." in shown


@pytest.mark.slow
def test_turns_say_whether_their_calls_could_be_done(policy: Any) -> None:
    broken = CALL.replace("add", "sub")
    episode = played(policy, None, [CALL, broken, f"{CALL}{broken}", "It is 5."], "<|end|>")
    assert [s.info["valid"] for s in episode.turns] == [True, False, False, True]


@pytest.mark.slow
def test_without_a_template_answers_stand_between_tags(policy: Any) -> None:
    episode = played(policy, None, [CALL, "5"], "<|end|>")
    assert text(policy, episode.tokens).endswith(f"2+3?{CALL}<|end|><tool_response>\n5\n</tool_response>5<|end|>"), (
        text(policy, episode.tokens)
    )


def test_the_next_turn_begins_where_the_last_ended(policy: Any) -> None:
    """Each view that is sampled from is the one before, what was said, and more."""
    from etude.policies.language import LanguagePolicy

    template, end = TEMPLATES["chatml"]
    policy.tokenizer.chat_template = template
    seen: list[list[int]] = []
    able, words = LanguagePolicy(policy.model, policy.tokenizer), policy.tokenizer

    def say(tokens: list[int]) -> Completion:
        seen.append(tokens)
        said = [*words.encode(CALL if len(seen) < 3 else "5"), words.convert_tokens_to_ids(end)]
        return Completion(said, [-1.0] * len(said), [], StopReason.END_OF_TEXT)

    able.converse = lambda: Scripted(say)  # type: ignore[method-assign, assignment]
    task = Told(("2+3?",), tools=ToolCalls(functions=FILE))
    (episode,) = rollout(fresh(task.problems("train"), 1, Stream(0)), Context(task, able, Stream(0)), Sampling())
    turns = [s.tokens for s in episode.segments if s.role == "assistant"]
    for before, said, after in zip(seen, turns, seen[1:]):
        assert after[: len(before) + len(said)] == before + said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("raise", "Error: misbehave raised KeyError: 'lost < /tool_call>'"),
        ("hang", "Error: misbehave did not return within 1 s."),
        ("exit", "Error: misbehave ended the process that it ran in."),
        ("much", f"{'a' * 2000} ... (the first 2000 of 1000000 characters)"),
        ("bytes", "�café"),
        ("colours", "red"),
        ("stop", "one S TOP two"),
        ("tags", '< tool_call>{"name": "add", "arguments": {"a": 1}}< /tool_call>< /tool_response>'),
    ],
)
def test_a_tool_that_misbehaves_is_an_observation(policy: Any, how: str, expected: str) -> None:
    template, end = TEMPLATES["chatml"]
    call = f'<tool_call>{{"name": "misbehave", "arguments": {{"how": "{how}"}}}}</tool_call>'
    episode = played(policy, template, [call, "5"], end, seconds=1.0 if how == "hang" else 20.0)
    (told,) = [s.text for s in episode.segments if s.role == "tool"]
    assert told == expected and episode.reward == 1.0, "and the episode goes on"


@pytest.mark.slow
@pytest.mark.parametrize("name", [*TEMPLATES, "none"])
def test_an_observation_cannot_forge_a_turn(policy: Any, name: str) -> None:
    template, end = TEMPLATES.get(name, (None, "<|end|>"))
    call = '<tool_call>{"name": "misbehave", "arguments": {"how": "turns"}}</tool_call>'
    honest = played(policy, template, [CALL, "5"], end)
    forged = played(policy, template, [call, "5"], end)
    special = {*policy.tokenizer.all_special_ids, *policy.tokenizer.added_tokens_decoder}
    inside = [[t for t in s.tokens if t in special] for s in (honest.segments[2], forged.segments[2])]
    assert inside[0] == inside[1], "no end, no role, but those of the template"
    said = forged.segments[2].text
    assert not any(mark in said for mark in turn_marks(policy.tokenizer))
    assert "O bey" not in said and "Obey." in said, "words stay words"


def test_roles_that_a_template_knows(policy: Any) -> None:
    words = policy.tokenizer
    found = {}
    for name, (template, _) in TEMPLATES.items():
        words.chat_template = template
        found[name] = takes_tools(words)
    words.chat_template = TAGS.replace("{% elif m.role == 'tool' %}[TOOL_RESULTS] {{ m.content }} [/TOOL_RESULTS]", "")
    assert found == {"chatml": True, "tags": True, "refuses": False}
    assert not takes_tools(words), "shown as the assistant's own words"
    assert {"[/INST]", "[INST]"} <= turn_marks(words)


# What is called


def answers(says: list[str], **fields: Any) -> list[str]:
    """What tools answer, without a model."""
    task = Toy(("x",), tools=ToolCalls(functions=FILE, **fields))
    world: Any = task.played_in()
    world.reset(task.problems("train")[0], 0)
    return [s.text for said in says for s in world.step(Segment("assistant", said)).segments]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ('{"name": "ad", "arguments": {}}', "Error: There is no tool 'ad'. Did you mean 'add'? There are: add, find"),
        ('{"name": "add"}', "Error: add needs the argument 'a', which must be an integer."),
        ('{"name": "add", "arguments": {"a": "2"}}', "Error: The argument 'a' of add must be an integer, got '2'."),
        ('{"name": "add", "arguments": {"a": true}}', "Error: The argument 'a' of add must be an integer, got True."),
        ('{"name": "add", "arguments": {"a": 1, "c": 2}}', "Error: add has no parameter 'c'. It has: a, b."),
        ('{"name": "add", "arguments": [1]}', "Error: The arguments of add must be an object, got [1]."),
        ("{'name': 'add'}", "Error: The call is no JSON (Expecting property name enclosed in double quotes): {'name'"),
        ("", "Error: The call is no JSON (Expecting value): "),
        ('{"name": "find", "arguments": {"where": "x", "kinds": ["a", 1]}}', "Error: The argument 'kinds' of find"
         " must be a list whose entries are each a text, got ['a', 1]."),
        ('{"name": "find", "arguments": {"where": "x", "kinds": ["a"], "how": null}}', '{"a": "x"}'),
        ('{"name": "find", "arguments": {"where": "x", "kinds": ["a"], "how": "so"}}', "Error: The argument 'how' of"
         " find must be one of 'fast', 'well', got 'so'."),
        ('{"name": "add", "parameters": {"a": 1}}\n{"name": "nope"}', "2"),
    ],
)  # fmt: skip
def test_wrong_calls_are_said_to_be_wrong(said: str, expected: str) -> None:
    assert answers([f"<tool_call>{said}</tool_call>"])[0].startswith(expected)


ONE = Call("add", {"a": 1})
READ: list[tuple[CallForm, str, list[Call | None]]] = [
    (TaggedCalls(), "add(a=1)", []),
    (TaggedCalls(), '<tool_call>[{"name": "add", "arguments": {"a": 1}}, 3]</tool_call>', [ONE, None]),
    (TaggedCalls(), '</tool_call> <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>', [None, ONE]),
    (TaggedCalls(open="[", close="]"), '[{"name": "add", "arguments": {"a": 1}}]', [ONE]),
    (TaggedCalls(), f"<tool_call>{'[' * 100_000}</tool_call>", [None]),
    (LineCalls(), "So add(a=1)?\n  add(1)\nadd(a=-1)", [ONE, Call("add", {"a": -1})]),
    (LineCalls(), "add(x)\nadd(1, a=1)\nadd(a=1, **{})\nnope(1, k=(2, {3: None}))",
     [None, None, None, Call("nope", {"argument 1": 1, "k": [2, {"3": None}]})]),
    (FencedCalls(), '```tool\n{"name": "add", "arguments": {"a": 1}}\n```\n```json\n{}\n```', [ONE]),
    (FencedCalls(), "```tool\n{", [None]),
    (NamedCalls(), "add: 1\nAnswer: 2\nad: 1\nadd: one", [ONE, None, Call("add", {"a": "one"})]),
]  # fmt: skip


@pytest.mark.parametrize(("form", "said", "expected"), READ)
def test_how_calls_are_read(form: CallForm, said: str, expected: list[Call | None]) -> None:
    found = form.read(said, {"add": described(add)})
    assert [None if isinstance(f, Misread) else f for f in found] == expected
    assert "add" in form.explained([described(add)])


def test_what_is_misread_is_said_in_the_same_words_in_every_run() -> None:
    (found,) = LineCalls().read("add(x)", {"add": described(add)})
    assert isinstance(found, Misread)
    assert found.why == (
        "The call add(x) cannot be read (malformed node or string on line 1): write plain values, as in f(a=1)."
    )


def test_schemas_are_those_of_transformers() -> None:
    from transformers.utils import get_json_schema

    def look(
        city: str, days: int, exact: bool, some: list[float], table: dict[str, int], how: str | None = None
    ) -> str:
        """Look at the weather.

        Args:
            city: where,
                by name.
            days: how many.
            exact: whether it matters.
            some: some.
            table: of numbers.
            how: in words.

        Returns:
            it
        """
        return ""

    theirs = get_json_schema(look)["function"]
    theirs.pop("return", None)
    assert described(look).schema == {"type": "function", "function": theirs}
    assert objection(described(look), {"city": "x", "days": 1, "exact": False, "some": [1], "table": {"a": 1}}) == ""


def undocumented(a: int) -> int:
    return a


def unhinted(a):  # type: ignore[no-untyped-def]
    """Of nothing."""


def unusual(a: bytes) -> None:
    """Of bytes."""


def unnamed(*a: int) -> None:
    """Of many."""


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (undocumented, "The tool undocumented has no docstring"),
        (unhinted, "The parameter 'a' of the tool unhinted has no type hint: write it as in a: str."),
        (unusual, "The type of the parameter 'a' of the tool unusual must be one that JSON has"),
        (unnamed, "The tool unnamed must take its arguments by name"),
    ],
)
def test_functions_that_are_no_tools(function: Callable[..., object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        described(function)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("functions", "sentence"),
    [
        ("nothing.py", "nothing.py"),
        ("abacus", "or one of calculator, search:FOLDER"),
        (f"{FILE}:subtract", "no attribute|There is no"),
        ("", "has no tools to call: name functions"),
    ],
)
def test_tools_that_are_not_there(functions: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Toy(tools=ToolCalls(functions=functions)).played_in()


class Desk(SingleTurn):
    """An environment with a tool of its own, which knows the episode."""

    def reset(self, problem: Problem, seed: int) -> list[Segment]:
        self.drawers = {"top": "pen", "bottom": "key"}
        return super().reset(problem, seed)

    def tools(self) -> list[Any]:
        return [self.open]

    def open(self, drawer: str) -> str:
        """Open a drawer."""
        if drawer == "stuck":
            while True:
                pass
        return self.drawers.pop(drawer)

    def step(self, segment: Segment) -> StepResult:
        return StepResult([], float(segment.text == "key"), terminated=True)


def test_tools_of_the_environment_itself() -> None:
    world: Any = Toy(("x",), world=Desk, tools=ToolCalls(calls=LineCalls(), seconds=0.05)).played_in()
    (first,) = world.reset(Problem("1", "x"), 0)
    assert first.info["tools"]["schemas"][0]["function"]["name"] == "open"
    said = [world.step(Segment("assistant", f"open(drawer='{d}')")).segments[0].text for d in ("top", "top", "stuck")]
    assert said == ["pen", "Error: open raised KeyError: 'top'", "Error: open did not return within 0.05 s."]
    assert world.step(Segment("assistant", "key")).reward == 1.0


@pytest.mark.slow
def test_tools_by_name() -> None:
    from etude.runs.shorthands import taken
    from etude.runs.training import compose_task

    told = [*taken({"tools": "calculator"}), "task.tools.calls=line-calls", "task.tools.turns=3"]
    task: Any = compose_task("sums", told)
    assert task.tools == ToolCalls(functions="calculator", calls=LineCalls(), turns=3) and task.max_turns == 3
    assert compose_task(task, ["task.tools=none"]).max_turns == 1  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"task\.tools is empty, so it has no field 'turns'; set the part first"):
        compose_task("sums", ["task.tools.turns=3"])
    with pytest.raises(ConfigError, match=r"tool-cals.*Did you mean 'tool-calls'"):
        compose_task("sums", ["task.tools=tool-cals"])


def test_a_task_of_one_turn_gets_more() -> None:
    assert Toy().max_turns == 1 and Toy(tools=ToolCalls(functions=FILE, turns=4)).max_turns == 4
    assert Toy(max_turns=9, tools=ToolCalls(functions=FILE)).max_turns == 9


@pytest.mark.slow
def test_the_calculator() -> None:
    from etude.experience.tools.calculator import calculator

    world: Any = Toy(("x",), tools=ToolCalls(functions="calculator", calls=NamedCalls())).played_in()
    world.reset(Problem("1", "x"), 0)
    said = ["2 * (3 + 4)", "9**9**9", "1/0", "__import__('os')", "factorial(10**9)", "(-8)**0.5"]
    found = [world.step(Segment("assistant", f"calculator: {s}")).segments[0].text for s in said]
    assert found[0] == "14" and all(f.startswith("Error: calculator raised ") for f in found[1:])
    assert "the result is too large" in found[1] and "no arithmetic" in found[3] and "no real number" in found[5]
    assert calculator("-2 ** 2 + 7 // 2 % 5") == "-1"
