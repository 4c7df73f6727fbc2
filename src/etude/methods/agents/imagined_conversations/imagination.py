"""An imagination engine without a language model: personas, dialogues with them, and a critique that rejects some."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any, ClassVar

from numpy.random import Generator

from etude.core.episodes import Problem, Segment, StopReason
from etude.core.errors import DataError
from etude.core.fields import Count, Probability, WholeNumber
from etude.core.streams import Stream
from etude.experience.dialogues import Dialogue, recorded
from etude.stages.chain import Derive
from etude.tasks.agents.games import one_of
from etude.tasks.agents.recommend import Recommend

if TYPE_CHECKING:
    from etude.core.task import LanguageTask

CONTRADICTS, GATHERS_NOTHING = "contradicts", "gathers-nothing"
"""Why the critique rejects a dialogue: what the user says is not the persona's; nothing was asked."""


class Imagine(Derive):
    """Dialogues of `recommend` that nobody had: a generator writes both sides (arXiv:2311.05584, section 4.1).

        reflection    the personas: those of `problems` of the task, each different from the others
        imagination   `each` dialogues with every persona: the agent asks about any preference, and recommends any
                      activity or, with probability `sense`, one that agrees with all it heard; with probability
                      `hurry` in each turn it recommends at once. The user answers wrongly with probability `errors`
        critique      `drafts` times a dialogue is rejected whose user contradicts the persona, or in which nothing was
                      asked, and written anew; the last draft is left out if it is rejected as well
        labelling     1 in the last turn if the recommendation is the *persona's*, else 0

    Without critique (`drafts=0`), with errors or not, and with one persona (`problems=1`), dialogues are those of the
    generator as they come.

    Raises: DataError for another task than `recommend`, or if every dialogue is rejected.

    >>> engine, task = Imagine(called="imagined", each=2, errors=0.0, hurry=0.0), Recommend()
    >>> len(engine.rows([task.problems("train")[0]], task, 0))
    2
    """

    worlds: ClassVar = Derive.worlds
    each: Count = 40
    hurry: Probability = 0.3
    sense: Probability = 0.6
    errors: Probability = 0.15
    drafts: WholeNumber = 4
    reflection: bool = True

    def rows(self, problems: Sequence[Problem], task: LanguageTask, seed: int) -> list[dict[str, Any]]:
        kept, rejected = self.imagined(problems, task, seed)
        if not kept:
            raise DataError(f"The critique rejected every imagined dialogue ({dict(rejected)}): lower errors or hurry.")
        return [dialogue.to_json() for dialogue in kept]

    def imagined(
        self, problems: Sequence[Problem], task: LanguageTask, seed: int
    ) -> tuple[list[Dialogue], Counter[str]]:
        """The dialogues that the critique lets through, and how many drafts it rejected, by reason."""
        if not isinstance(task, Recommend):
            raise DataError(f"{self.called} imagines dialogues of recommend, and the task is {task.id}.")
        personas, kept, rejected = [str(p.answer) for p in problems], list[Dialogue](), Counter[str]()
        for persona in dict.fromkeys(personas) if self.reflection else personas:
            for number in range(self.each):
                for draft in range(self.drafts + 1):
                    random = Stream(seed).split("imagined", persona, number, draft).numpy
                    dialogue = self._written(task, persona, random)
                    why = criticised(task, persona, dialogue) if self.drafts else None
                    if why is None:
                        kept.append(dialogue)
                        break
                    rejected[why] += 1
        return kept, rejected

    def _written(self, task: Recommend, persona: str, random: Generator) -> Dialogue:
        """One dialogue, both sides."""
        segments, heard = [Segment("user", "plan?\n")], dict[int, str]()
        for turn in range(task.max_turns):
            if random.random() < self.hurry or turn + 1 == task.max_turns:
                said = self._recommended(task, heard, random)
                right = said == task.right(persona)
                segments.append(Segment("assistant", f"go {said}", reward=float(right)))
                return recorded(segments, id=persona, success=right)
            place = int(random.integers(task.preferences))
            truth = persona[place]
            told = truth if random.random() >= self.errors else str(1 - int(truth))
            heard[place] = told
            asked = Segment("assistant", f"ask {ascii_lowercase[place]}", reward=0.0 - task.cost)
            segments += [asked, Segment("user", "yes\n" if told == "1" else "no\n")]
        segments[-1].info["stop"] = StopReason.TRUNCATED
        return recorded(segments, id=persona, success=False)

    def _recommended(self, task: Recommend, heard: dict[int, str], random: Generator) -> int:
        """Any activity, or one that agrees with what was heard."""
        every = [format(k, f"0{task.matter}b") for k in range(task.activities)]
        fitting = [bits for bits in every if all(bits[k] == v for k, v in heard.items() if k < task.matter)]
        return int(one_of(random, fitting if random.random() < self.sense else every), 2)


def answers(dialogue: Dialogue) -> Iterator[tuple[int, str]]:
    """Which preference was asked about, and what was answered, '1' or '0'."""
    for said, heard in zip(dialogue.segments, dialogue.segments[1:]):
        if said.role == "assistant" and said.text.startswith("ask "):
            yield ascii_lowercase.index(said.text[-1]), str(int(heard.text.strip() == "yes"))


def criticised(task: Recommend, persona: str, dialogue: Dialogue) -> str | None:
    """Why a dialogue is rejected; None: it is not."""
    told = [*answers(dialogue)]
    if any(persona[place] != told_ for place, told_ in told):
        return CONTRADICTS
    return None if told else GATHERS_NOTHING
