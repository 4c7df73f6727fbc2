"""What is in view when a problem is tried again: the beginning of its worked answer, or an attempt and a critique.

It is written into the problem's prompt, so a chat template sees it as what a user says.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from etude.core.episodes import Episode, Message
from etude.core.errors import ConfigError
from etude.core.fields import Count, Probability
from etude.core.part import Part
from etude.core.slots import Context
from etude.core.task import LanguageTask, Task
from etude.experience.groups import Groups
from etude.experience.rollout import Start, rollout

HINT = "\nThe following text is the beginning part of the answer, which you can refer to:\n{}\n"
"""GHPO's words."""
RETRY = "\n{}\nThe right answer follows.\n"
LOOKED_AT = 100
"""Problems of a task among which one with a worked answer is looked for."""
Prompt = str | Sequence[Message]


class Shown(Part, abstract=True):
    """What is in view when a problem is tried again."""

    slot = "shows"

    @property
    def stages(self) -> int:
        """How often at most a problem is looked at again."""
        return 1

    def starts(self, attempts: Sequence[Episode], stage: int, context: Context) -> list[Start | None]:
        """Where the next try begins, one for each first attempt; None where there is nothing to show."""
        raise NotImplementedError


class SolutionInPrompt(Shown):
    """The beginning of the worked answer, behind the prompt: longer and longer ones while a problem is chosen (GHPO).

    Args:
        shares: of the answer's characters, rounded, one for each stage; 0 shows nothing, and only tries again.
        text: what is said, {} for the beginning.

    Problems without a worked answer are not tried again.

    >>> SolutionInPrompt(shares=(0.25, 0.5)).stages, SolutionInPrompt(text="{}").prompt("2+3+4=", "5,9", 0.5)
    (2, '2+3+4=5,')
    """

    shares: tuple[Probability, ...] = (0.25, 0.5, 0.75)
    text: str = HINT

    def check(self) -> None:
        if not self.shares:
            raise ConfigError("SolutionInPrompt.shares must have at least one share of the worked answer, got none.")
        _check_room(self.text, "SolutionInPrompt.text", "the beginning of the answer")

    def lacks(self, task: Task) -> str | None:
        return without_answers(task)

    @property
    def stages(self) -> int:
        return len(self.shares)

    def prompt(self, prompt: Prompt, answer: str, share: float) -> Prompt:
        """A prompt that shows so much of an answer."""
        return followed(prompt, self.text.replace("{}", answer[: round(share * len(answer))]) if share else "")

    def starts(self, attempts: Sequence[Episode], stage: int, context: Context) -> list[Start | None]:
        answers, share = [context.task.demonstration(e.problem) for e in attempts], self.shares[stage]
        beginnings = {e.group: text[: round(share * len(text))] for e, text in zip(attempts, answers) if text}
        count_shown(beginnings.values(), context)
        return [
            None if text is None else tried_again(e, self.prompt(e.problem.prompt, text, share), stage)
            for e, text in zip(attempts, answers)
        ]


class Critic(Part, abstract=True):
    """Who says what is wrong with an attempt."""

    slot = "critic"

    def say(self, attempts: Sequence[Episode], context: Context) -> Sequence[str | None]:
        """A sentence about each; None where there is nothing to go by."""
        raise NotImplementedError


class Verdict(Critic):
    """Whether it is right, and, with `answer`, what is (Critique-GRPO's indicative critiques).

    Args:
        right, wrong: what is said.
        answer: said behind it, {} for the problem's answer; '' keeps it back.

    >>> Verdict().sentence(False, 6), Verdict(answer="").sentence(True, 6)
    ('wrong, it is 6', 'right')
    """

    right: str = "right"
    wrong: str = "wrong"
    answer: str = ", it is {}"

    def sentence(self, right: bool, answer: object) -> str:
        """What is said of a right or wrong attempt at a problem with this answer."""
        told = "" if answer is None else self.answer.replace("{}", str(answer))
        return (self.right if right else self.wrong) + told

    def say(self, attempts: Sequence[Episode], context: Context) -> list[str]:
        if self.answer:
            count_shown([str(e.problem.answer) for e in attempts if e.problem.answer is not None], context)
        return [self.sentence(context.task.success(e), e.problem.answer) for e in attempts]


class FirstWrongStep(Critic):
    """Where an attempt leaves the worked answer: the number, from 1, of the first of its steps that differs.

    Args:
        separator: what stands between steps.
        right: what is said where none differs.
        wrong: what is said, {} for the number.

    Attempts at problems without a worked answer are not mended.

    >>> FirstWrongStep().sentence("8,16,18", "8,17,19"), FirstWrongStep().sentence("8,17", "8,17")
    ('wrong at step 2', 'right')
    """

    separator: str = ","
    right: str = "right"
    wrong: str = "wrong at step {}"

    def check(self) -> None:
        if not self.separator:
            raise ConfigError("FirstWrongStep.separator must be what stands between steps, got ''.")
        _check_room(self.wrong, "FirstWrongStep.wrong", "the number of the step")

    def lacks(self, task: Task) -> str | None:
        return without_answers(task)

    def sentence(self, attempt: str, answer: str) -> str:
        """What is said of an attempt at a problem with this worked answer."""
        said, steps = attempt.strip().split(self.separator), answer.strip().split(self.separator)
        if said == steps:
            return self.right
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(said, steps)))
        return self.wrong.replace("{}", str(same + 1))

    def say(self, attempts: Sequence[Episode], context: Context) -> list[str | None]:
        answers = [context.task.demonstration(e.problem) for e in attempts]
        said = [None if a is None else self.sentence(e.completion, a) for e, a in zip(attempts, answers)]
        count_shown(filter(None, said), context)
        return said


class OwnCritique(Critic):
    """What the policy itself says when it is shown the attempt and asked.

    Args:
        request: what it is asked.
        max_tokens: of what it says; the first line of it counts.

    None of it is trained on. Whether it is right is for nobody to say.

    >>> OwnCritique(max_tokens=8).max_tokens
    8
    """

    request: str = "\nWhat is wrong? "
    max_tokens: Count = 16

    def say(self, attempts: Sequence[Episode], context: Context) -> list[str]:
        asked = [
            tried_again(e, continued(e.problem.prompt, e.completion, self.request), 0, "critique") for e in attempts
        ]
        sampling = dataclasses.replace(
            Groups(max_tokens=self.max_tokens).sampling(context), stop=("\n",), entropy=False, hidden=False
        )
        return [e.completion.partition("\n")[0].strip() for e in rollout(asked, context, sampling)]


class AttemptAndCritique(Shown):
    """The attempt behind its prompt, and what a critic says of it (Critique-GRPO).

    Args:
        critic: who says it.
        text: what stands behind the attempt, {} for what the critic says.

    >>> AttemptAndCritique(text="[{}]").prompt("2+3=", "6", "wrong, it is 5")
    '2+3=6[wrong, it is 5]'
    """

    critic: Critic = Verdict()
    text: str = RETRY

    def check(self) -> None:
        _check_room(self.text, "AttemptAndCritique.text", "the critique")

    def prompt(self, prompt: Prompt, attempt: str, critique: str) -> Prompt:
        """A prompt that shows an attempt and what is said of it."""
        return continued(prompt, attempt, self.text.replace("{}", critique))

    def starts(self, attempts: Sequence[Episode], stage: int, context: Context) -> list[Start | None]:
        said = self.critic.say(attempts, context)
        return [
            None if c is None else tried_again(e, self.prompt(e.problem.prompt, e.completion, c), stage)
            for e, c in zip(attempts, said)
        ]


def count_shown(texts: Iterable[str], context: Context) -> None:
    """Count the tokens of what is shown of answers, or said of attempts by who knows them (`shown_tokens`)."""
    context.policy.work["shown_tokens"] += sum(len(context.policy.encode(text)) for text in texts if text)


# Prompts


def followed(prompt: Prompt, text: str) -> Prompt:
    """A prompt with text behind it, in a conversation behind the user's last message.

    >>> followed("1+1=", "2"), followed([{"role": "user", "content": "1+1="}], "2")
    ('1+1=2', [{'role': 'user', 'content': '1+1=2'}])
    """
    if isinstance(prompt, str) or not text:
        return prompt + text if isinstance(prompt, str) else prompt
    last = max((i for i, m in enumerate(prompt) if m["role"] == "user"), default=len(prompt) - 1)
    return [_longer(m, text) if i == last else m for i, m in enumerate(prompt)]


def continued(prompt: Prompt, said: str, text: str) -> Prompt:
    """A prompt, what was said after it, and text about that.

    >>> continued("1+1=", "3", " wrong"), len(continued([{"role": "user", "content": "1+1="}], "3", "wrong"))
    ('1+1=3 wrong', 3)
    """
    if isinstance(prompt, str):
        return prompt + said + text
    return [*prompt, {"role": "assistant", "content": said}, {"role": "user", "content": text.strip()}]


def _longer(message: Message, text: str) -> Mapping[str, Any]:
    content = message.get("content")
    longer = [*content, {"type": "text", "text": text}] if isinstance(content, list) else f"{content or ''}{text}"
    return {**message, "content": longer}


def tried_again(attempt: Episode, prompt: Prompt, stage: int, what: str = "look") -> Start:
    """Where a new attempt at an attempt's problem begins, in an environment of the same seed."""
    assert attempt.draw is not None
    problem = dataclasses.replace(attempt.problem, prompt=prompt)
    return Start(problem, attempt.group, attempt.draw.child(what, stage), seed=attempt.seed)


def without_answers(task: Task) -> str | None:
    """What to say of a task none of whose first problems has a worked answer; None of others."""
    if not isinstance(task, LanguageTask):
        return None
    pool = task.problems("train")
    if any(task.demonstration(pool[i]) is not None for i in range(min(LOOKED_AT, len(pool)))):
        return None
    return (
        f"Problems of task {task.id!r} have no worked answer to show: give data files a 'completion' column (or "
        "'messages'), and a task of your own a `demonstration`."
    )


def _check_room(text: str, field: str, what: str) -> None:
    if "{}" not in text:
        raise ConfigError(f"{field} must have {{}} where {what} stands, got {text!r}.")
