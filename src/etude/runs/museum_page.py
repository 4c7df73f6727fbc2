"""The page of the museum: what came of every exhibit, here and in other libraries."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from etude.evaluation.exhibits import KINDS, SAID, SILENT, STOPPED, VISIBLE
from etude.runs.museum import PLACE, Visit

PEERS = {"trl": "TRL", "sb3": "SB3", "d3rlpy": "d3rlpy"}
"""Whose columns there are; what came of the exhibits there is in `museum/peers/NAME.json`."""
WORDS = {STOPPED: "**stopped**", SAID: "**said**", VISIBLE: "in a metric", SILENT: "silent"}
NONE = "–"
HEAD = """\
# A museum of silent failures

Most faults of reinforcement learning end with exit code 0: the run goes on, the curve looks plausible, the number is
wrong. Each row is such a fault from a public thread, brought back by a patch of a few lines into a run of a few steps.
What came of it is observed, not declared:

- *stopped*: the run ended with a sentence before anything was learned from it;
- *said*: a sentence, and the run went on;
- *in a metric*: nothing was said, but a number that is logged left the band in which it lies otherwise;
- *silent*: none of these up to two steps after the first at which the fault had an effect;
- –: it has no counterpart there.

`etude museum run ID` repeats one, `etude museum run --all` all of them, with the same run without the fault, which must
say nothing. [Below](#one-by-one) is each with its thread, what was done, and what was said.

The columns of other libraries are written by `museum/peers/in_*.py`, each run in that library's environment. The rule
is theirs in doubt: one faulty run of three that ends in whatever exception is *stopped*; one new line in any log is
*said*; a number of any name that in all three faulty runs lies outside of five clean ones at the same step, widened
by their whole width on both sides, is *in a metric*, though who has no clean run would not see it. Where TRL compares
what it trains on with its sampler, which needs vLLM, a copy of the model stood in for it. Runs are of a few hundred
steps at most: that a policy that was trained for long suddenly returns less is seen in none of them. Where a thread
says that a fault has been mended since, it has.

This page is written by `python docs/make_museum.py`."""


@dataclass(frozen=True)
class Peer:
    """What came of the exhibits in another library.

    Args:
        exhibits: verdict, answer and how the fault was brought back, by exhibit.
        none: why exhibits have no counterpart; `otherwise` of those that it does not name.
    """

    title: str
    versions: str
    exhibits: Mapping[str, Mapping[str, str]]
    none: Mapping[str, str]
    otherwise: str

    @classmethod
    def read(cls, name: str, place: Path = PLACE) -> Peer:
        """As its script wrote it."""
        found = json.loads((place / "peers" / f"{name}.json").read_text(encoding="utf-8"))
        return cls(PEERS[name], **found)

    def word(self, exhibit: str) -> str:
        """Of its column."""
        return WORDS[self.exhibits[exhibit]["verdict"]] if exhibit in self.exhibits else NONE

    def line(self, exhibit: str) -> str:
        """What was done there, and what came of it."""
        if exhibit not in self.exhibits:
            return f"- {self.title}: {NONE} {_plain(self.none.get(exhibit, self.otherwise))}"
        found = self.exhibits[exhibit]
        answer = f": {_plain(found['answer'])}" if found["answer"] else ""
        return f"- {self.title} ({_plain(found['how'])}): {WORDS[found['verdict']]}{answer}"


def page(visits: Mapping[str, Visit], peers: Mapping[str, Peer]) -> str:
    """The page, from what came of the exhibits here and elsewhere."""
    blocks = [HEAD, _counts(visits, peers)]
    columns = ["fault", "etude", *(peer.title for peer in peers.values())]
    for kind, title in KINDS.items():
        rows = [_row(v, peers) for v in visits.values() if v.exhibit.kind == kind]
        if rows:
            lines = [_cells(columns), _cells(["---"] * len(columns)), *rows]
            blocks += [f"## {title}", "\n".join(lines)]
    missed = [v for v in visits.values() if v.found.verdict == SILENT]
    if missed:
        blocks += ["## What etude misses", "\n".join(f"- `{v.exhibit.id}`: {v.exhibit.miss}" for v in missed)]
    blocks += ["## One by one", *(_whole(v, peers) for v in visits.values())]
    return "\n\n".join(blocks) + "\n"


def _counts(visits: Mapping[str, Visit], peers: Mapping[str, Peer]) -> str:
    verdicts = {"etude": [v.found.verdict for v in visits.values()]}
    for peer in peers.values():
        verdicts[f"{peer.title} ({peer.versions})"] = [x["verdict"] for x in peer.exhibits.values()]
    rows = [[name, str(len(own)), *(str(own.count(word)) for word in WORDS)] for name, own in verdicts.items()]
    head = ["", "exhibits", *(word.strip("*") for word in WORDS.values())]
    return "\n".join([_cells(head), _cells(["---"] * len(head)), *map(_cells, rows)])


def _row(one: Visit, peers: Mapping[str, Peer]) -> str:
    name = one.exhibit.id
    fault = f"[`{name}`](#{name})<br>{_plain(one.exhibit.says)}"
    return _cells([fault, WORDS[one.found.verdict], *(peer.word(name) for peer in peers.values())])


def _cells(values: list[str]) -> str:
    return f"| {' | '.join(values)} |"


def _whole(one: Visit, peers: Mapping[str, Peer]) -> str:
    exhibit, found = one.exhibit, one.found
    answer = f": {_plain(found.answer)}" if found.answer else ""
    report = f"[{exhibit.report.thread}]({exhibit.report.address}): {_plain(exhibit.report.title)}"
    lines = [f"- etude ({_plain(exhibit.mechanism.removesuffix('.'))}): {WORDS[found.verdict]}{answer}"]
    return "\n".join([f"### {exhibit.id}\n\n{report}\n", *lines, *(peer.line(exhibit.id) for peer in peers.values())])


def _plain(text: str) -> str:
    """Text as it is in a cell of a table."""
    for mark in "\\|*_<`":
        text = text.replace(mark, "\\" + mark if mark != "<" else "&lt;")
    return text
