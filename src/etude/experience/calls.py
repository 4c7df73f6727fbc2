"""How a policy writes calls of tools, and how they are read: each form is a part (`task.tools.calls`)."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from etude.core.errors import ConfigError, nearest
from etude.core.part import Part
from etude.experience.tools.schemas import Tool, from_text, meant

Reading = list["Call | Misread"]


@dataclass(frozen=True)
class Call:
    """A call as it was written; whether there is such a tool, and what it takes, is another question."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Misread:
    """Why something that looks like a call is none, as a sentence for the policy."""

    why: str


class CallForm(Part, abstract=True):
    """How calls are written."""

    slot = "calls"

    @property
    def marks(self) -> tuple[str, ...]:
        """Strings that calls are made of, which nothing that a tool returns may have."""
        return ()

    def read(self, text: str, tools: Mapping[str, Tool]) -> Reading:
        """The calls in what the policy said, in order, and what looks like one but cannot be read; [] for neither."""
        raise NotImplementedError

    def explained(self, tools: Sequence[Tool]) -> str:
        """What can be called and how, for a policy whose chat template does not say it."""
        listed = "\n".join(json.dumps({"name": t.name, "description": t.description, "parameters": t.parameters},
                                      ensure_ascii=False) for t in tools)  # fmt: skip
        return f"You can call these tools:\n{listed}\n{self.how(tools[0])}"

    def how(self, tool: Tool) -> str:
        """How a call is written, as a sentence with an example."""
        raise NotImplementedError


class TaggedCalls(CallForm):
    """JSON between tags: an object, a list of them, or one on each line; `parameters` serves as `arguments`.

    >>> TaggedCalls().read('So: <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>', {})
    [Call(name='add', arguments={'a': 1})]
    >>> TaggedCalls().read("<tool_call>", {})
    [Misread(why='A call that begins with <tool_call> must end with </tool_call>.')]
    """

    open: str = "<tool_call>"
    close: str = "</tool_call>"

    def check(self) -> None:
        if not self.open.strip() or not self.close.strip():
            raise ConfigError("TaggedCalls: open and close must be tags, as in <tool_call> and </tool_call>.")

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.open, self.close)

    def read(self, text: str, tools: Mapping[str, Tool]) -> Reading:
        found: Reading = []
        before, *rest = text.split(self.open)
        pieces = [piece.partition(self.close) for piece in rest]
        if self.close in before or any(self.close in after for _, _, after in pieces):
            found.append(Misread(f"There is a {self.close} that no {self.open} comes before."))
        for body, closed, _ in pieces:
            if closed:
                found += objects(body)
            else:
                found.append(Misread(f"A call that begins with {self.open} must end with {self.close}."))
        return found

    def how(self, tool: Tool) -> str:
        example = json.dumps({"name": tool.name, "arguments": dict.fromkeys(tool.names, "...")})
        return f"To call one, write {self.open}{example}{self.close}; what it returns comes next."


class FencedCalls(CallForm):
    """JSON in a block of code that is labelled as a call; other blocks are none.

    >>> said = chr(96) * 3 + 'tool' + chr(10) + '{"name": "add", "arguments": {"a": 1}}' + chr(10) + chr(96) * 3
    >>> FencedCalls().read(said, {})
    [Call(name='add', arguments={'a': 1})]
    """

    label: str = "tool"

    def check(self) -> None:
        if not re.fullmatch(r"[\w-]+", self.label):
            raise ConfigError(f"FencedCalls.label must be one word, got {self.label!r}.")

    @property
    def marks(self) -> tuple[str, ...]:
        return ("```",)

    def read(self, text: str, tools: Mapping[str, Tool]) -> Reading:
        found: Reading = []
        for begun in re.finditer(rf"^[ \t]*```{re.escape(self.label)}[ \t]*$", text, re.MULTILINE):
            body, closed, _ = text[begun.end() :].partition("```")
            if closed:
                found += objects(body)
            else:
                found.append(Misread(f"A call that begins with ```{self.label} must end with ```."))
        return found

    def how(self, tool: Tool) -> str:
        example = json.dumps({"name": tool.name, "arguments": dict.fromkeys(tool.names, "...")})
        return f"To call one, write\n```{self.label}\n{example}\n```\nWhat it returns comes next."


class LineCalls(CallForm):
    """One call per line, as Python writes it, its arguments plain values.

    >>> LineCalls().read("I add:\\nadd(a=1, b=[2])", {})
    [Call(name='add', arguments={'a': 1, 'b': [2]})]
    """

    def read(self, text: str, tools: Mapping[str, Tool]) -> Reading:
        lines = [line.strip() for line in text.split("\n")]
        return [_python(line, tools) for line in lines if re.fullmatch(r"[A-Za-z_]\w*\(.*\)", line)]

    def how(self, tool: Tool) -> str:
        example = f"{tool.name}({', '.join(f'{name}=...' for name in tool.names)})"
        return f"To call one, write it on a line of its own, as in {example}; what it returns comes next."


class NamedCalls(CallForm):
    """`name: text` on a line: the rest of the line is the tool's first argument.

    >>> tool = Tool("search", "", {"properties": {"query": {"type": "string"}}})
    >>> NamedCalls().read("Hm: well.\\nsearch: Apollo 11", {"search": tool})
    [Call(name='search', arguments={'query': 'Apollo 11'})]
    """

    def read(self, text: str, tools: Mapping[str, Tool]) -> Reading:
        found: Reading = []
        for line in text.split("\n"):
            begun = re.match(r"\s*([A-Za-z_]\w*):(.*)", line)
            if begun is None:
                continue
            name, said = begun[1], begun[2].strip()
            if name in tools:
                found.append(_named(tools[name], said))
            elif nearest(name, tools):
                found.append(Misread(f"There is no tool {name!r}.{meant(name, list(tools))}"))
        return found

    def how(self, tool: Tool) -> str:
        return f"To call one, write {tool.name}: TEXT on a line of its own; what it returns comes next."


def objects(body: str) -> Reading:
    """The calls in a text of JSON: an object, a list of them, or one on each line.

    >>> objects('{"name": "a"}\\n{"name": "b"}'), objects("[1]")[0].why
    ([Call(name='a', arguments={}), Call(name='b', arguments={})], 'A call must be an object with a name, got 1.')
    """
    try:
        whole = json.loads(body)
    except (ValueError, RecursionError) as error:
        lines = [line for line in body.split("\n") if line.strip()]
        if len(lines) > 1:
            return [call for line in lines for call in objects(line)]
        return [Misread(f"The call is no JSON ({_said(error)}): {_short(body.strip())}")]
    return [_object(item) for item in (whole if isinstance(whole, list) else [whole])]


def _object(item: object) -> Call | Misread:
    if not isinstance(item, dict) or not isinstance(item.get("name"), str):
        return Misread(f"A call must be an object with a name, got {_short(json.dumps(item))}.")
    arguments = item.get("arguments", item.get("parameters", {}))
    if not isinstance(arguments, dict):
        return Misread(f"The arguments of {item['name']} must be an object, got {_short(json.dumps(arguments))}.")
    return Call(item["name"], arguments)


def _python(line: str, tools: Mapping[str, Tool]) -> Call | Misread:
    try:
        call = ast.parse(line, mode="eval").body
        assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
        values = {k.arg: ast.literal_eval(k.value) for k in call.keywords}
        placed = [ast.literal_eval(a) for a in call.args]
    except (SyntaxError, ValueError, AssertionError, TypeError, RecursionError, MemoryError) as error:
        return Misread(f"The call {_short(line)} cannot be read ({_said(error)}): write plain values, as in f(a=1).")
    name = call.func.id
    places = tools[name].names if name in tools else [f"argument {i + 1}" for i in range(len(placed))]
    if None in values or len(placed) > len(places) or {*values} & {*places[: len(placed)]}:
        return Misread(f"The call {_short(line)} gives {name} more arguments than it has, or one twice.")
    return Call(name, {**dict(zip(places, map(_plain, placed))), **{str(k): _plain(v) for k, v in values.items()}})


def _plain(value: object) -> Any:
    """A Python value as JSON has it."""
    if isinstance(value, (list, tuple, set)):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    return value if value is None or isinstance(value, (str, int, float)) else repr(value)


def _named(tool: Tool, said: str) -> Call | Misread:
    if not tool.names:
        return Call(tool.name) if not said else Misread(f"{tool.name} takes nothing: leave out what follows the colon.")
    first = tool.names[0]
    return Call(tool.name, {first: from_text(said, tool.parameters["properties"][first])})


def _said(error: BaseException) -> str:
    """What is wrong, without the address of anything in memory: policies read it, the same in every run."""
    return re.sub(
        r": <[^>]* object at 0x[0-9a-f]+>", "", str(getattr(error, "msg", None) or error or type(error).__name__)
    )


def _short(text: str, most: int = 120) -> str:
    return text if len(text) <= most else f"{text[:most]}..."
