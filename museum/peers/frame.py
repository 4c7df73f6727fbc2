"""What came of a fault in a peer, observed as generously as it can be; it imports nothing of etude.

Each peer's script, run in that peer's environment, brings faults back as its user would meet them and writes what came
of them, with its version, to `<peer>.json` beside it. The rule, in doubt for the peer:

- *stopped*: an exception in a faulty run that no clean run raises;
- *said*: a warning, a record of its log, or a printed line that calls itself a warning, that no clean run has;
- *visible in a metric*: a number that it logs lies, in every faulty run, outside of what the clean runs show at the
  same step, widened by its whole width on both sides: a user who knows no clean run would not see it;
- *silent*: none of these up to two steps after the first at which the fault has an effect.

Five runs are clean and three are faulty, each with a seed of its own. One faulty run that is stopped or warned is
enough; a number has to show in all three.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import logging
import math
import os
import re
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CLEAN, FAULTY, WITHIN = 5, 3, 2
LIMIT = 120
"""Seconds after which a run that has said nothing is ended from outside: it hangs."""
UNTOLD = re.compile(r"time|runtime|second|fps|per_second|flos", re.IGNORECASE)
"""Numbers that depend on the processor."""

Step = Mapping[str, float]


def beside(name: str) -> Any:
    """A file of the museum that peers use too, as a module."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / f"{name}.py")
    assert spec is not None and spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GIVEN: dict[str, Any] = {}
"""What the user of a faulty run does otherwise, or what another sampler does."""


@contextmanager
def giving(**faulty: Any) -> Iterator[None]:
    """A user who does something otherwise."""
    GIVEN.update(faulty)
    try:
        yield
    finally:
        GIVEN.clear()


def given(**faulty: Any) -> Callable[[], Any]:
    return lambda: giving(**faulty)


class Attack:
    """Runs code when it is read: it makes a folder."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.place),)


@dataclass(frozen=True)
class Case:
    """An exhibit in a peer.

    Args:
        inject: the fault, for as long as the context lasts.
        run: the numbers that the peer logs, step by step, of a run with this seed.
        how: how the fault is brought back, in a few words.
        begins: the first step, from 0, at which it has an effect.
        limit: seconds after which the run counts as hanging.
    """

    inject: Callable[[], AbstractContextManager[Any]]
    run: Callable[[int], Iterator[Step]]
    how: str
    begins: int = 0
    limit: int = LIMIT


@dataclass
class Seen:
    """One run: its steps, what it said, what ended it."""

    steps: list[dict[str, float]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    ended: str = ""
    hung: bool = False


class _Hangs(BaseException):
    """Not an Exception, so that no library catches it."""


class _Records(logging.Handler):
    def __init__(self, said: list[str]) -> None:
        super().__init__(logging.WARNING)
        self.said = said

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@contextlib.contextmanager
def _heard(said: list[str]) -> Iterator[None]:
    """Warnings, records of every log, and lines that call themselves warnings."""
    handler, out, err = _Records(said), io.StringIO(), io.StringIO()
    loggers = [logging.getLogger(), *(logging.getLogger(name) for name in list(logging.root.manager.loggerDict))]
    loggers = [one for one in loggers if one.name == "root" or not one.propagate]
    with warnings.catch_warnings(record=True) as told, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        warnings.simplefilter("always")
        for one in loggers:
            one.addHandler(handler)
        try:
            yield
        finally:
            for one in loggers:
                one.removeHandler(handler)
            said += [str(w.message) for w in told]
            lines = (out.getvalue() + err.getvalue()).splitlines()
            said += [line.strip() for line in lines if re.search(r"\bwarn|\berror", line, re.IGNORECASE)]


def look(case: Case, seed: int, faulty: bool) -> Seen:
    """One run."""

    def late(*_: Any) -> None:
        raise _Hangs

    seen = Seen()
    before = signal.signal(signal.SIGALRM, late)
    with _heard(seen.said):
        signal.alarm(case.limit)
        try:
            with case.inject() if faulty else nullcontext():
                for step in case.run(seed):
                    seen.steps.append({k: float(v) for k, v in step.items() if _told(k, v)})
        except _Hangs:
            seen.hung = True
        except Exception as error:  # whatever ends the run
            seen.ended = f"{type(error).__name__}: {error}"
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
    return seen


def _told(name: str, value: Any) -> bool:
    return isinstance(value, int | float) and not UNTOLD.search(name)


_clean: dict[Any, list[Seen]] = {}
"""Clean runs, which exhibits share that differ in their fault alone."""


def cleanly(case: Case) -> list[Seen]:
    """Runs without the fault. Raises RuntimeError if one of them ends early, as it then shows nothing."""
    if case.run not in _clean:
        _clean[case.run] = [look(case, seed, faulty=False) for seed in range(CLEAN)]
    for one in _clean[case.run]:
        if one.ended or one.hung:
            raise RuntimeError(f"a clean run ended: {one.ended or 'hangs'}")
    return _clean[case.run]


def verdict(case: Case) -> dict[str, Any]:
    """What came of an exhibit."""
    clean, faulty = cleanly(case), list[Seen]()
    usual = {_shape(sentence) for one in clean for sentence in one.said}
    for seed in range(FAULTY):
        one = look(case, seed + 100, faulty=True)
        new = [sentence for sentence in one.said if _shape(sentence) not in usual]
        if one.ended:
            return {"verdict": "stopped", "answer": _short(one.ended)}
        if new:
            return {"verdict": "said", "answer": _short(new[0])}
        if one.hung:
            return {"verdict": "silent", "answer": f"nothing for {case.limit} s, then ended from outside"}
        faulty.append(one)
    return _visible(case, clean, faulty) or {"verdict": "silent", "answer": ""}


def _shape(sentence: str) -> str:
    """The sentence without its numbers and paths."""
    return re.sub(r"\d[\d.e+-]*|/\S+", "#", sentence)


def _short(sentence: str) -> str:
    line = re.sub(r"\x1b\[[0-9;]*m|/\S*/", "", " ".join(sentence.split()))
    return line if len(line) <= 160 else line[:157] + "..."


def _visible(case: Case, clean: list[Seen], faulty: list[Seen]) -> dict[str, Any] | None:
    """The number that lies farthest outside in all faulty runs, in widths of its band."""
    best: tuple[float, str, str] | None = None
    names = {name for one in faulty for step in one.steps for name in step}
    for name in sorted(names):
        found = [_outside(case, name, clean, one) for one in faulty]
        if any(f is None for f in found):
            continue
        least = min((f for f in found if f is not None), key=lambda f: f[0])
        if best is None or least[0] > best[0]:
            best = least[0], name, least[1]
    return None if best is None else {"verdict": "visible in a metric", "answer": f"{best[1]}: {best[2]}"}


def _outside(case: Case, name: str, clean: list[Seen], one: Seen) -> tuple[float, str] | None:
    best: tuple[float, str] | None = None
    for at, step in enumerate(one.steps[: case.begins + WITHIN + 1]):
        usual = [c.steps[at][name] for c in clean if at < len(c.steps) and name in c.steps[at]]
        if name not in step or len(usual) < CLEAN or any(math.isnan(v) for v in usual):
            continue
        low, high, value = min(usual), max(usual), step[name]
        width = max(high - low, 1e-6 * max(1.0, abs(low), abs(high)))
        far = math.inf if math.isnan(value) else max(low - value, value - high) / width
        if far > 1 and (best is None or far > best[0]):
            best = far, f"{value:.3g} instead of {low:.3g} to {high:.3g}"
    return best


def main(peer: str, versions: str, cases: Mapping[str, Case], none: Mapping[str, str], otherwise: str) -> None:
    """Run the cases, all or some, and write what came of them beside this file.

    Args:
        none: exhibits that have no counterpart, and why.
        otherwise: why those have none that are not named at all.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("ids", nargs="*", help="exhibits; all without")
    chosen = parser.parse_args().ids or list(cases)
    path = Path(__file__).with_name(f"{peer}.json")
    found = json.loads(path.read_text(encoding="utf-8"))["exhibits"] if path.exists() else {}
    for name in chosen:
        begun = time.process_time()
        found[name] = {**verdict(cases[name]), "how": cases[name].how}
        print(f"{name:<32}{found[name]['verdict']:<21}{found[name]['answer']} ({time.process_time() - begun:.0f} s)",
              flush=True)  # fmt: skip
        kept = {k: found[k] for k in cases if k in found}
        told = {"versions": versions, "exhibits": kept, "none": dict(sorted(none.items()))}
        told["otherwise"] = otherwise
        path.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
