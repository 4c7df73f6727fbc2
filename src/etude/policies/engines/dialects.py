"""What every adapter of an engine does, and what it is asked for and answers.

An adapter knows the routes of one kind of engine, in the versions of its table. It is asked for rows, each by a number
of its own, and told to take weights; what is done when an engine is lost or full is not its business (`remote.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from etude.core.episodes import StopReason
from etude.core.errors import ConfigError, EtudeError
from etude.policies.sampling import Completion, Sampling

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy


@dataclass(frozen=True)
class Asked:
    """One row to go on with.

    Args:
        number: of the row, by which it is asked again and its answer is known.
        tokens: all that it holds. key: of the draw that its numbers come from. begun: tokens of its turn among them.
        room: tokens that fit behind them: the model's context, and what is left of a turn that counts whole.
    """

    number: int
    tokens: Sequence[int]
    key: int
    begun: int
    room: int


@dataclass(frozen=True)
class Turn:
    """What all rows of a turn are asked with.

    Args:
        end_ids: tokens that end a row. context: most tokens that the model attends to.
        last: nothing follows in these rows. session: of the conversation; others: further rows that it has open.
    """

    sampling: Sampling
    end_ids: Sequence[int]
    context: int
    last: bool = False
    session: str = ""
    others: Sequence[int] = ()


@dataclass
class Said:
    """What an engine answered to rows.

    Args:
        completions: by the number of the row; one that is missing was ended from outside, and is asked again.
        marks: which weights the engine says that they were sampled from, where it does.
        work: what it was to read them, as a policy counts it.
    """

    completions: dict[int, Completion]
    marks: set[str] = field(default_factory=set)
    work: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Greeting:
    """What an engine says of itself.

    Args:
        version: of its package. context: most tokens that it attends to; None: it does not say.
        tags: whether it keeps a name for the weights that it was given, and tells it.
    """

    version: str
    context: int | None = None
    tags: bool = False


class Dialect(Protocol):
    """An adapter."""

    name: ClassVar[str]
    setting: ClassVar[str]
    """What to give it at its start so that it has more room."""
    together: int
    """Rows that it is asked for at a time."""

    def greet(self) -> Greeting:
        """Who answers. Raises ConfigError for a version that the adapter's table does not have."""
        ...

    def lacks(self, sampling: Sampling) -> str | None:
        """What it cannot do of a way to sample, as the end of a sentence; None: it can."""
        ...

    def complete(self, rows: Sequence[Asked], turn: Turn) -> Said:
        """Go on with rows, all or some of them. Raises as `Wire.post` where none was answered."""
        ...

    def give(self, policy: LanguagePolicy, mark: str) -> None:
        """Let it take the policy's weights, under this mark. Raises Refused where it does not."""
        ...

    def held(self) -> str | None:
        """The mark of the weights that it has; None: it does not say."""
        ...

    def pause(self) -> None:
        """Let it finish what it is at, and begin nothing."""
        ...

    def resume(self) -> None:
        """Let it go on."""
        ...


def known(name: str, version: str, table: Sequence[tuple[str, str]]) -> tuple[int, ...]:
    """The numbers of a version, if the table has it, from a first to a last release.

    >>> known("vLLM", "0.33.0", (("0.22", "0.33"),))
    (0, 33, 0)

    Raises: ConfigError for any other.
    """
    found = re.match(r"\d+(?:\.\d+)*", version)
    numbers = tuple(int(n) for n in found[0].split(".")) if found else ()
    for first, last in table:
        low, high = (tuple(int(n) for n in end.split(".")) for end in (first, last))
        if numbers and low <= numbers and numbers[: len(high)] <= high:
            return numbers
    spans = " and ".join(f"{low} to {high}" for low, high in table)
    raise ConfigError(
        f"The engine is {name} {version or 'of no version that it says'}, and the versions whose routes are known here "
        f"are {spans}: names have changed between versions, so others are not tried. Install one of these in the "
        "engine's own environment."
    )


def why_ended(asked: Asked, turn: Turn, tokens: Sequence[int], by_stop: bool, by_string: bool) -> StopReason:
    """Why a row ended after these tokens, in etude's words."""
    if by_string:
        return StopReason.STOP_STRING
    if by_stop:
        return StopReason.END_OF_TEXT
    full = len(asked.tokens) + len(tokens) >= turn.context
    return StopReason.CONTEXT_OVERFLOW if full else StopReason.MAX_TOKENS


def whole(asked: Asked, turn: Turn, tokens: Sequence[int], logp: Sequence[Any], stop: StopReason) -> Completion:
    """The completion of a row, checked: a log-probability for each token, and at least one of them.

    Raises: ConfigError for an answer of another shape.
    """
    if not tokens or len(logp) != len(tokens) or any(not isinstance(p, (int, float)) for p in logp):
        raise ConfigError(
            f"The engine answered row {asked.number} with {len(tokens)} token ids and {len(logp)} log-probabilities: "
            "each sampled token needs one, and a row has at least one. Its version is not one that is known here, "
            "whatever it says."
        )
    greedy = turn.sampling.temperature == 0  # what cannot come out otherwise has probability 1
    return Completion(list(tokens), [0.0] * len(tokens) if greedy else [float(p) for p in logp], stop=stop)


@contextmanager
def model_folder(policy: LanguagePolicy) -> Iterator[Path]:
    """A Hugging Face folder with the policy's weights, an adapter folded in; gone afterwards."""
    from etude.policies.snapshots import folder_for

    merged = policy.merged()
    with folder_for(sum(p.nbytes for p in merged.parameters())) as folder:
        merged.save_pretrained(folder)
        yield folder


def plain(sampling: Sampling) -> str | None:
    """What engines that are not etude's cannot do of a way to sample."""
    if sampling.within is not None:
        return "tokens that are allowed one by one are not asked for over HTTP"
    if sampling.tilt is not None:
        return "logits that are tilted token by token are not asked for over HTTP"
    if sampling.hidden:
        return "it sends no hidden states"
    if sampling.entropy:
        return "it sends no entropies of what tokens were drawn from"
    if sampling.fork_temperature is not None:
        return "it has one temperature for all tokens"
    return None


def ask_each(
    rows: Sequence[Asked], ask: Callable[[Asked], Any], together: int, read: Callable[[Asked, Any], Completion | None]
) -> Said:  # fmt: skip
    """Ask for each row by itself, so many at a time, and read the answers; a row whose turn failed is left out.

    Raises: what was raised first, where no row was answered.
    """

    def one(row: Asked) -> Any:
        try:
            return ask(row)
        except EtudeError as error:
            return error

    with ThreadPoolExecutor(max(1, min(together, len(rows))), thread_name_prefix="engine") as threads:
        answers = list(threads.map(one, rows))
    said = Said({}, work={"prefilled_tokens": 0, "prefilled_again": 0})
    for row, answer in zip(rows, answers):
        if isinstance(answer, EtudeError) or (completion := read(row, answer)) is None:
            continue
        said.completions[row.number] = completion
        said.work["prefilled_tokens"] += len(row.tokens)
    errors = [answer for answer in answers if isinstance(answer, EtudeError)]
    if errors and not said.completions:
        raise errors[0]
    return said
