"""Small batches of hand-made completions, as plain numbers: what the pinned losses are computed on.

Nothing here imports the library. Columns of [B, T] tensors are the tokens of completions, the prompt left out; `old` is
the policy that sampled, `new` the policy as it is. Ratios of the two are far from 1 on both sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

VOCABULARY, WIDTH = 7, 3
LOOP, COMMA = 3, 2
"""A token that one completion repeats; the token that ends a step."""
PROMPT = 2
"""Tokens before a completion."""
RATE = 0.02
"""The learning rate that parts are told of."""


class World:
    """Rows of completions of several problems, what three policies say of them, and what they were paid.

    Args:
        groups, lengths, rewards: [B] problem, tokens and reward of each row.
        limit: most tokens of a completion.
        cut: rows that the limit ended.
        written: rows that were written, not sampled.
        imitated: rows that are imitated, and no attempts.
        elsewhere: rows that were sampled in another context; None: no part asks.
        skip: [B] tokens at the beginning that are not learned.
        going: rows that go on in a later step; of rows with `skip`, those tokens were sampled in earlier ones.
        info: [B] what is noted on the episodes.
        temperature: logits are divided by it.
        sampled_above: what truncation added to the log-probabilities that were recorded.
    """

    def __init__(
        self, groups: Sequence[int], lengths: Sequence[int], rewards: Sequence[float], *, limit: int = 10,
        cut: Iterable[int] = (), written: Iterable[int] = (), imitated: Iterable[int] = (),
        elsewhere: Iterable[int] | None = None, skip: Sequence[int] = (), going: Iterable[int] = (),
        info: Sequence[dict] = (), temperature: float = 1.0, sampled_above: float = 0.0,
    ) -> None:  # fmt: skip
        self.groups, self.lengths, self.rewards, self.limit = list(groups), list(lengths), list(rewards), limit
        self.count, self.cut, self.written, self.imitated = len(self.groups), set(cut), set(written), set(imitated)
        self.elsewhere = None if elsewhere is None else set(elsewhere)
        self.going = set(going)
        self.skip, self.info = list(skip) or [0] * self.count, list(info) or [{} for _ in self.groups]
        self.temperature, random = temperature, torch.Generator().manual_seed(11)
        shape = (self.count, max(self.lengths))

        def noise(*last: int) -> Tensor:
            return torch.randn(*shape, *last, generator=random, dtype=torch.float64)

        self.head = 1.2 * torch.randn(VOCABULARY, WIDTH, generator=random, dtype=torch.float64)
        self.tokens = torch.randint(1, VOCABULARY, shape, generator=random)
        self.tokens[1] = LOOP
        self.hidden = noise(WIDTH)
        self.hidden_now = self.hidden + 0.4 * noise(WIDTH)
        self.sampling, now = self.logp(self.hidden), self.logp(self.hidden_now)
        self.whole = self._chosen(self.sampling)
        self.old = self.whole + sampled_above
        self.new = self._chosen(now).requires_grad_(True)
        self.reference = self.logp(self.hidden + 0.3 * noise(WIDTH))
        self.ref = self._chosen(self.reference)
        self.entropy = -(now.exp() * now).sum(-1).requires_grad_(True)
        self.values = 0.4 * noise()
        self.values_now = (self.values + 0.4 * noise()).requires_grad_(True)
        self.marks, self.levels = ("", ""), dict[int, str]()
        """What stands around a completion; levels of problems that have one."""
        self.answer, self.said = "3", list[str]()
        """What is right; what completions say, if not what `text` makes up."""
        self.spelled = {COMMA: ","}
        """What tokens say that are looked into; others say `x`."""
        self.notes: dict[str, Any] = {}
        """What parts drew at random while the batch was scored."""

    def logp(self, hidden: Tensor) -> Tensor:
        """[B, T, V] log-probabilities of all tokens."""
        return (hidden @ self.head.T / self.temperature).log_softmax(-1)

    def _chosen(self, logp: Tensor) -> Tensor:
        return logp.gather(-1, self.tokens[..., None])[..., 0]

    def of(self, name: str, row: int) -> Tensor:
        """The learned tokens of a row."""
        found: Tensor = getattr(self, name)[row, self.skip[row] : self.lengths[row]]
        return found

    @property
    def solved(self) -> list[bool]:
        return [r >= 1 for r in self.rewards]

    def group(self, row: int, among: Iterable[int] | None = None) -> list[int]:
        """Rows of the same problem, written ones left out."""
        rows = range(self.count) if among is None else among
        return [j for j in rows if self.groups[j] == self.groups[row] and j not in self.written]

    def text(self, row: int) -> str:
        """What a completion says: without an answer, garbled, or a step and an answer."""
        if self.said:
            return self.said[row]
        return {0: "nothing", 6: "a\ufffd=1"}.get(row, "a,b=3" if row % 2 else "b=3").join(self.marks)


def plain(**changes: Any) -> World:
    """Two problems that are solved now and then and one that never is, five completions each."""
    groups, lengths = [0] * 5 + [1] * 5 + [2] * 5, [3, 9, 5, 10, 2, 4, 6, 8, 2, 7, 3, 5, 8, 4, 6]
    rewards = changes.pop("rewards", [1.0, 0, 1, 0, 0, 0, 1, 1, 0, 1, 0, 0, 0, 0, 0])
    return World(groups, lengths, rewards, **{"cut": (3,), **changes})


def continued() -> World:
    """Of the first problem two completions had ended in an earlier step, one of them right."""
    return plain(info=[{"visit": "0", "earlier": (1.0, 0.0)}] * 5 + [{"visit": "1"}] * 10)


def truncated() -> World:
    """Hot samples of a truncated distribution, whose log-probabilities are not the policy's."""
    return plain(temperature=1.2, sampled_above=0.1)


def cooled() -> World:
    """Samples of a sharpened distribution, whose log-probabilities are the policy's at that temperature."""
    return plain(temperature=0.6)


def kinds() -> World:
    """The same, the problem that is never solved of another kind than the other two."""
    world = cooled()
    world.levels = {2: "other"}
    return world


def segments() -> World:
    """Predictions between brackets; of the second problem they are of a segment in the middle."""
    world = plain()
    world.marks, world.levels = ("[", "]"), {1: "middle"}
    return world


def called() -> World:
    """Calls of tools: those wanted, one with a wrong value, without a thought, none, no grammar, turned round."""
    add, other, neg = (
        f'{{"name": "{name}", "parameters": {{{values}}}}}'
        for name, values in (("add", '"a": 1, "b": 2'), ("add", '"a": 1, "b": 3'), ("neg", '"x": 3'))
    )
    world, thought = plain(), "<think>so</think>\n"
    right = f"<tool_call>\n{add}\n{neg}\n</tool_call>"
    bodies = [f"{add}\n{neg}", other, "", f"{neg}\n{add}"]
    whole, wrong, none, turned = (f"{thought}<tool_call>\n{body}\n</tool_call>" for body in bodies)
    kinds = [whole, wrong, right, none, "b=3", turned]
    world.answer, world.said = right, [kinds[(i + i // 5) % 6] for i in range(world.count)]
    return world


def patched() -> World:
    """Patches: the right one, one with a wrong digit, no format, another file, one file too many, no change."""

    def said(*edits: tuple[str, str, str]) -> str:
        blocks = "".join(
            f"### {path}\n<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE\n" for path, old, new in edits
        )
        return f"<think>so</think>\n<solution>\n{blocks}</solution>"

    right, beside = ("a.py", "y = 2", "y = 3"), ("b.py", "z = 1", "z = 2")
    kinds = [
        said(right), said(("a.py", "y = 2", "y = 4")), "y = 3", said(beside), said(right, beside),
        said(("a.py", "y = 2", "y = 2")),
    ]  # fmt: skip
    world, files = plain(), {"a.py": "x = 1\ny = 2\n", "b.py": "z = 1\n"}
    world.notes["listed"] = {"files": files, "fixed": {**files, "a.py": "x = 1\ny = 3\n"}}
    world.said = [kinds[(i + i // 5) % 6] for i in range(world.count)]
    return world


def informed() -> World:
    """Token 4 begins what was found, token 5 ends it; texts that keep to the grammar of searches, or less."""
    once = "<search>a</search><information>b</information>"
    kinds = [
        f"<think>q</think>{once}<think>r</think><answer>c</answer>", f"<think>q</think>{once}<answer>c</answer>",
        "<think>q</think><answer>c</answer>", "nothing",
        f"<think>q</think>{once * 2}<think>r</think><answer>c</answer>",
    ]  # fmt: skip
    world = plain()
    world.spelled |= {4: "<information>", 5: "</information>"}
    world.tokens[3, 0] = 4
    world.tokens[3, 1:][world.tokens[3, 1:] == 5] = 1  # nothing of it is learned
    world.said = [kinds[(i + i // 5) % 5] for i in range(world.count)]
    return world


def even_lengths() -> World:
    """Lengths at which the cosine of the share of the limit is a round number."""
    return World([0] * 4 + [1] * 4, [4, 6, 8, 12, 6, 6, 4, 12], [1.0, 0, 1, 0, 0, 1, 1, 0], limit=12, cut=(3,),
                 temperature=0.7)  # fmt: skip


def pairs() -> World:
    """A better and a worse answer to each of three problems; of the second, the worse one comes first."""
    return World([0, 0, 1, 1, 2, 2], [3, 5, 4, 2, 6, 1], [1.0, 0, 0, 1, 1, 0], written=range(6))


def futures() -> World:
    """Two ways to go on at a turn of each of four dialogues, of which one was cut; in two the tokens before the turn
    are in the row."""
    rewards = [0.25, 0.75, 1.0, 0.0, 0.5, 0.9, 0.3, 0.2]
    return World([i // 2 for i in range(8)], [3, 5, 4, 2, 6, 4, 7, 5], rewards, skip=[0, 0, 0, 0, 2, 2, 1, 1], cut=(3,))


def scored() -> World:
    """Four answers to each of three problems with what they are worth; two of one are worth as much."""
    rewards = [0.3, -0.5, 1.25, 0.0, 0.5, 0.5, 2.0, -1.0, 0.1, 0.2, 0.4, 0.8]
    return World([i // 4 for i in range(12)], [3, 5, 4, 2, 6, 1, 2, 8, 3, 4, 7, 5], rewards, written=range(12))


def demonstrations() -> World:
    return World([0, 1, 2], [2, 5, 3], [0.0] * 3, written=range(3))


def with_demonstrations() -> World:
    """Three completions and a worked answer of each of five problems; three, whose answers differ in length, fail."""
    rewards = [1.0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    lengths = [3, 5, 2, 4, 6, 2, 3, 5, 7, 1, 4, 3, 2, 8, 3, 1, 4, 4, 5, 9]
    return World([i // 4 for i in range(20)], lengths, rewards, written=(3, 7, 11, 15, 19))


def refused() -> World:
    """As `with_demonstrations`, of which some say four words twice, and of one problem all that were sampled.

    What is best of the first problem is far from the reference; what is recorded of a worked answer is no likelihood.
    """
    world = with_demonstrations()
    world.ref[2] -= 5
    world.old[11] += 9
    again = {0, 5, 8, 9, 10, 16, 17, 18, 19}
    world.said = ["p q r s p q r s" if i in again else "p q r s t" for i in range(world.count)]
    world.notes["refused"] = again
    return world


def large_group() -> World:
    """One right answer among thirty, which lies more than five deviations above the mean, and another problem."""
    lengths = [1 + i % 3 for i in range(36)]
    rewards = [1.0] + [0.0] * 29 + [0.0, 1, 0, 0, 1, 0]
    return World([0] * 30 + [1] * 3 + [2] * 3, lengths, rewards)


def retries() -> World:
    """Attempts and retries that learn from where they part, and three rows that are only imitated."""
    return World([0] * 6 + [1] * 4, [4, 6, 5, 3, 7, 4, 2, 5, 3, 6], [0.0, 1, 0, 1, 0.5, 1, 0, 0.25, 1, 1],
                 skip=[0, 2, 2, 0, 1, 0, 0, 0, 1, 2], imitated=(5, 9))  # fmt: skip


def mended() -> World:
    """The last completion of each problem is an attempt that was mended in view of a critique; one problem is never."""
    return plain(elsewhere=(4, 9, 14))


def in_modes() -> World:
    """Two completions of each problem that think and two that do not, after one token that says so or two.

    Thinking is better by more than the margin, by less, and not at all; some are equally good, some equally long.
    """
    rewards = [1.0, 1, 0, 1, 1, 0, 0.75, 0, 0, 0, 0.5, 0.5, 1, 0.25, 0, 0]
    lengths = [9, 5, 4, 3, 6, 8, 2, 5, 7, 7, 4, 4, 8, 3, 3, 2]
    info = [{"mode": int(i % 4 > 1), "mode_tokens": 1 + int(i % 4 > 1)} for i in range(16)]
    return World([i // 4 for i in range(16)], lengths, rewards, info=info)


def thoughts() -> World:
    """Behind a token that begins them."""
    return plain(temperature=0.7, skip=[1] * 15)


def windows() -> World:
    """Completions that began in this step or in an earlier one, and end or go on: all four."""
    rewards = [1.0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]
    return plain(rewards=rewards, skip=[0, 4, 0, 5, 0, 2, 0, 4, 0, 0, 1, 0, 4, 2, 0], going=(2, 4, 5, 8, 12))


def said_anew() -> World:
    """Whole games, and utterances at stored states, of which a critic says what they are worth beyond the state."""
    world = plain(going=(1, 4, 5, 8, 9, 12))
    world.notes["offers"] = {"utterance_advantage": [0.0, 0.75, 0, 0, -1.5, 0.25, 0, 0, -0.5, 2.0, 0, 0, 1.25, 0, 0]}
    return world


def vines() -> World:
    """Two seed rollouts, six continuations of each of two states, and a problem without continuations."""
    kinds = "aabcbbadbcad"
    info = [{}, {}] + [{"vine": k // 6, "signature": kinds[k]} for k in range(12)] + [{}, {}]
    lengths, rewards = (
        [5, 3, 7, 2, 4, 8, 3, 2, 6, 7, 1, 5, 3, 9, 4, 6],
        [1.0, 0, 1, 0, 1, 1, 0, 0, 0, 1, 1, 0.5, 1, 0, 0, 1],
    )
    return World([0] * 14 + [1] * 2, lengths, rewards, info=info)


def guided() -> World:
    """Of every other completion a guide said the first tokens, from one to all but the last."""
    lengths = plain().lengths
    return plain(skip=[0 if i % 2 else 1 + i % (n - 1) if n > 1 else 0 for i, n in enumerate(lengths)])


def finished() -> World:
    """A guide finished all but every third completion, of which the tokens before it are these."""
    return plain(info=[{} if i % 3 == 0 else {"finished_by_guide": True} for i in range(15)])


def forked() -> World:
    """Three completions of each of two problems, and three fresh ones of each text behind which a segment begins: the
    two prompts (0 and 1), and beginnings. The rows of fresh ones learn behind their text; those of text 4 are lost."""
    groups, lengths, rewards = [0, 0, 0, 1, 1, 1], [9, 8, 10, 4, 6, 3], [1.0, 0, 1, 0, 1, 0]
    texts = [(0, 0), (3, 0), (0, 3), (0, 6), (1, 5), (2, 2), (2, 4), (2, 7), (4, 3), (5, 1)]
    info: list[dict] = [{"prefixes": [[PROMPT, group]]} for group in groups]
    for number, (row, place) in enumerate(texts[2:], 2):
        info[row]["prefixes"].append([PROMPT + place, number])
    skip = [0] * 6
    for number, (row, place) in enumerate(texts):
        for again in range(0 if number == 4 else 3):
            groups.append(groups[row])
            skip.append(place)
            lengths.append(min(10, place + 1 + again))
            rewards.append(float((number + again) % 3 == 0 or again == number % 2))
            info.append({"prefix": number})
    return World(groups, lengths, rewards, skip=skip, info=info, temperature=0.6)


def beside_greedy() -> World:
    """One completion of each of three problems, and the greedy one of each, of which nothing is learned."""
    info = [{"prefixes": [[PROMPT, group]]} for group in range(3)] + [{"prefix": group} for group in range(3)]
    return World([0, 1, 2] * 2, [9, 4, 10, 3, 5, 8], [1.0, 0, 0.5, 0.25, 0, 2], info=info)


def nodes() -> World:
    """A tree of two levels for each of two problems: rows learn what they add, and those that others go on from have no
    reward. One of them is worth what the prompt is; below the last, all are worth the same."""
    above = [-1, -1, -1, 0, 0, 1, 1, -1, -1, 8, 8]
    rewards = [0.0, 0, 1, 1, 0, 1, 0.5, 1, 0, 0, 0]
    lengths, skip = [4, 4, 3, 9, 6, 5, 8, 7, 4, 6, 9], [0, 0, 0, 4, 4, 4, 4, 0, 0, 4, 4]
    info = [{"node": number, "above": before} for number, before in enumerate(above)]
    return World([0] * 7 + [1] * 4, lengths, rewards, skip=skip, info=info, going=(0, 1, 8), temperature=0.6)


def searched() -> World:
    """Answers that a search found, with what their steps are worth; the last of each problem was sampled as it is."""
    worth = [[0.25, 0.75, 1.0], [-1.0], [0.25, -0.5, -1.0], [-0.5, -1.0], None] * 2
    lengths, info = [6, 9, 8, 10, 4, 7, 5, 9, 3, 6], list[dict]()
    for length, q in zip(lengths, worth):
        step = [t * len(q) // length for t in range(length)] if q else []
        info.append({"worth": q, "said": {"step": step}} if q else {})
    return World([0] * 5 + [1] * 5, lengths, [1.0, 0, 0, 0, 1] * 2, cut=(3,), info=info)


def settled() -> World:
    """Answers that a search came to; of each problem it settled on one or two, some of them wrong."""
    chosen = {2, 4, 7, 10, 13}
    return plain(info=[{"chosen": i in chosen} for i in range(15)])


def executed_now_and_then() -> World:
    """Episodes of one turn, of which every third could not be done."""
    return plain(info=[{"said": {"valid": i % 3 != 1}} for i in range(15)])


def dialogues() -> World:
    """Calls with the tokens that choose their tool, and those that end values; of six, two were not answered by tools
    that did what was said."""
    marks: list[tuple[list[int], list[int], Any]] = [
        ([2, 3], [6], " oslo"), ([1], [4, 7], None), ([1, 2], [], {"role": "tool", "content": "7"}),
        ([1], [3], "ERROR: no argument"), ([], [], "ok"), ([0], [2], {"role": "user", "content": "so?"}),
    ]  # fmt: skip
    info = [{"said": {"key_tokens": k, "value_ends": e}, "problem": {"reply": r}} for k, e, r in marks]
    return World(range(6), [9, 14, 4, 6, 5, 7], [0.0] * 6, limit=14, written=range(6), info=info)


def erring() -> World:
    """Calls with all kinds of errors, and right ones."""
    said = [
        '{"name": "add", "parameters": {"a": 1, "b": 2}}', '{"name": "add", "parameters": {"a": 1, "b": 3}}',
        '{"name": "add", "parameters": {"a": 1}}', '{"name": "add", "parameters": {"a": 1, "b": 2, "z": 0}}',
        '{"name": "add", "parameters": {"c": 1, "z": 0}}', '{"name": "neg", "parameters": {}}', "add",
    ]  # fmt: skip
    world = plain()
    world.answer, *_ = texts = [f"<tool_call>\n{call}\n</tool_call>" for call in said]
    world.said = [texts[(i + i // 5) % 7] for i in range(world.count)]
    world.notes["listed"] = {"signatures": {"add": ["a", "b", "c"], "neg": ["x"]}}
    return world
