"""Judges whom asking costs something: a function of the user's, and a language model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Self

import torch

from etude.core.episodes import Episode, Problem, Segment
from etude.core.errors import ConfigError
from etude.core.fields import Positive
from etude.core.method import Method
from etude.core.rows import to_batch
from etude.core.slots import Context
from etude.core.task import spoken
from etude.policies.texts.models import read_once
from etude.rewards.judges import Case, RememberingJudge
from etude.runtime.checkpoints import newest_model
from etude.runtime.serving import CallFailed, Reason
from etude.runtime.workers import Worker

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy

HANGS = 3
"""Deadlines that a judge may miss in one step before it is not asked about the rest."""
TOKENS = 8192
"""Padded tokens that are read at a time."""


class FunctionJudge(RememberingJudge):
    """A function of the user's, called for each case in a worker process with a deadline: True, False, or a score.

    It takes `prompt`, `given` and `wanted`, a list of texts. Where it raises, is late or returns None, it has failed.

    Args:
        function: 'module:name' or 'path/to/file.py:name'.
        timeout: seconds that one call may take.

    Raises: ConfigError when a run starts and the function cannot be loaded; RewardError for no number in [0, 1].

    A function that calls every number that begins like the right one half right, say, is asked

    >>> FunctionJudge(function="my_judges.py:close", timeout=2.0, least=0.5).least
    0.5
    """

    function: str = ""
    timeout: Positive = 10.0

    def check(self) -> None:
        source, _, name = self.function.rpartition(":")
        if self.function and not (source and name.isidentifier()):
            form = "'module:name' or 'path/to/file.py:name'"
            raise ConfigError(f"FunctionJudge.function must be {form}, got {self.function!r}.")

    def objection(self, method: Method) -> str | None:
        return None if self.function else "has no function to ask: name one, as in function=my_judges.py:same."

    def scores(self, cases: Sequence[Case], context: Context) -> list[float | None]:
        said: list[float | None] = []
        late = 0
        for case in cases:
            message = {"prompt": case.prompt, "given": case.given, "wanted": list(case.wanted)}
            try:
                said.append(self._worker.call(message, self.timeout) if late < HANGS else None)
            except CallFailed as failure:
                late += failure.reason is Reason.TIMED_OUT
                self.made["why"] = f"It {failure.detail}"
                said.append(None)
        return said

    def bind(self) -> Self:
        """A run's copy, its function loaded. Raises ConfigError if that fails."""
        copy = super().bind()
        if copy.function:
            copy._worker.greeting()
        return copy

    @property
    def why(self) -> str:
        return str(self.made.get("why", ""))

    @cached_property
    def _worker(self) -> Worker:
        return Worker.of(self.function, "etude.rewards")

    def close(self) -> None:
        """End the worker process. It also ends when the part is forgotten, and with this process."""
        self._worker.close()


class ModelJudge(RememberingJudge):
    """A language model, asked in words: the score is P(yes) / (P(yes) + P(no)) of two replies to one question.

    Both replies are read by teacher forcing, the token that ends them included, so nothing is sampled. A model with a
    chat template is asked in a user's message. A question longer than its context has no answer.

    Args:
        model: 'tiny', a folder, a name on the hub, or a run of which the newest whole checkpoint is taken.
        question: what it is asked; {prompt}, {given} and {wanted} are filled in.
        yes, no: the replies.

    Raises: ConfigError for a question that cannot be filled in, or replies that are the same.

    >>> ModelJudge(question="{given}={wanted}?").asked(Case("2+5=", "seven", ("7",)))
    'seven=7?'
    """

    model: str = ""
    question: str = (
        "Question: {prompt}\nRight answer: {wanted}\nGiven answer: {given}\n"
        "Does the given answer mean the same as the right one? Reply yes or no.\n"
    )
    yes: str = "yes"
    no: str = "no"

    def check(self) -> None:
        if self.yes == self.no:
            raise ConfigError(f"ModelJudge.yes and no must be two replies, got {self.yes!r} twice.")
        try:
            self.question.format(prompt="", given="", wanted="")
        except (KeyError, IndexError, ValueError) as error:
            raise ConfigError(
                f"ModelJudge.question may have {{prompt}}, {{given}} and {{wanted}} in it ({error!r}), got "
                f"{self.question!r}."
            ) from None
        object.__setattr__(self, "model", newest_model(self.model))  # named as it is now: a run may go on

    def objection(self, method: Method) -> str | None:
        return None if self.model else "has no model to ask: name a folder or a run, as in model=runs/judge."

    def asked(self, case: Case) -> str:
        """The question about a case."""
        return self.question.format(prompt=case.prompt, given=case.given, wanted=" ".join(case.wanted))

    def scores(self, cases: Sequence[Case], context: Context) -> list[float | None]:
        model = read_once(self, self.model, context.policy)
        rows = [self._reply(i, case, reply, model) for i, case in enumerate(cases) for reply in (self.yes, self.no)]
        whole = [i for i in range(0, len(rows), 2) if rows[i].action_count and rows[i + 1].action_count]
        read = [row for i in whole for row in rows[i : i + 2]]
        said = dict(zip(whole, likelihoods(model, read).view(-1, 2).softmax(1)[:, 0].tolist()))
        return [said.get(i) for i in range(0, len(rows), 2)]

    def _reply(self, place: int, case: Case, reply: str, model: LanguagePolicy) -> Episode:
        from etude.policies.written import written

        text = self.asked(case)
        talks = bool(model.tokenizer.chat_template)
        opening = spoken({"role": "user", "content": text}) if talks else Segment("user", text)
        return written(Problem(case.key, text), [opening, Segment("assistant", reply)], place, model)


@torch.no_grad()
def likelihoods(model: LanguagePolicy, episodes: Sequence[Episode]) -> torch.Tensor:
    """[N] log-probability of all that is said in each episode, in nats, in float64."""
    from etude.policies.micro_batches import micro_batches

    found = torch.zeros(len(episodes), dtype=torch.float64)
    if not episodes:
        return found
    batch = to_batch(episodes, model.tokenizer.pad_token_id, 1.0, model.device)
    for piece in micro_batches(model, batch, TOKENS):
        rows = batch.rows(piece, trim=True)
        logp = torch.where(rows.action_mask, model.evaluate(rows).logp, 0.0)
        found[piece.cpu()] = logp.double().sum(1).cpu()
    return found
