"""`report.html`: a run on one page that can be sent to somebody who has nothing else.

Made from whatever the run folder holds: a missing file leaves its section out, a torn line is skipped and counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.core.errors import RunFolderError
from etude.evaluation import report_curves, report_entropy, report_evaluation, report_rollouts
from etude.evaluation.page import breakable, duration, escape, facts, page, plain, rows
from etude.runtime import disk
from etude.runtime.stopping import best_by, parse_stop


@dataclass(frozen=True)
class Wording:
    """How runs of a world are spoken of.

    Args:
        budget: what a run's steps count, in a few words.
        counter: the metric that counts them.
        scores: title of the scores before and after training.
        leading, also: how the names of the metrics begin that stand in it first, and those that come last.
        digits: behind the point, of a score.
        unread: settings that runs of this world have no use for.
    """

    budget: str = "steps"
    counter: str = "step"
    scores: str = "Accuracy of samples, with 95% intervals over problems"
    leading: tuple[str, ...] = ("pass@",)
    also: tuple[str, ...] = ()
    digits: int = 3
    unread: tuple[str, ...] = ()


META = ("id", "title", "paper", "type", "row", "kind", "parent", "claim")


def write_report(folder: Path, wording: Wording = Wording()) -> Path:
    """Write `report.html` from the files of a run folder. Returns its path.

    Args:
        wording: how runs of its world are spoken of.

    Raises RunFolderError if the folder is not there or holds no file of a run.
    """
    folder = Path(folder)
    files = ("method.json", "metrics.jsonl", "environment.json", "evaluation.json")
    if not any((folder / name).exists() for name in files):
        raise RunFolderError(f"{folder} holds no run to report on: none of {', '.join(files)} is there.")
    torn: dict[str, int] = {}
    records = {
        name: list(read_lines(folder / f"{name}.jsonl", torn)) for name in ("metrics", "episodes", "evaluations")
    }
    run = {name: read_object(folder / f"{name}.json") for name in ("method", "config", "environment", "evaluation")}
    run |= {"finished": read_object(folder / "FINISHED"), "stopped": read_object(folder / "STOPPED")}
    curves = report_curves.collect(records["metrics"])
    looks = report_curves.collect_looks(records["evaluations"], records["metrics"])
    sections = [
        _header(run, records["metrics"], wording),
        _section(
            "Before and after", report_evaluation.render(run["evaluation"]) + _best(run, records["evaluations"])
        ),
        _section("Training", report_curves.render(curves, looks)),
        _section("Entropy", report_entropy.render(curves, looks)),
        _section("Rollouts", report_rollouts.render(spoken(records["episodes"]))),
        _section("Method", _method(run["method"])),
        _section("Settings", _settings(_unsaid(run, wording))),
        _section("Environment", _settings({k: v for k, v in run["environment"].items() if k != "seed"})),
        _footer(torn),
    ]  # fmt: skip
    path = folder / "report.html"
    disk.replace_file(path, page(_title(run), "\n".join(filter(None, sections))).encode())
    return path


def _best(run: Mapping[str, Any], looks: list[dict[str, Any]]) -> str:
    """Which evaluation was the best, if there were several."""
    when = parse_stop(run["config"]["stop_when"]) if run["config"].get("stop_when") else None
    found = best_by(looks, when)
    return f"<p>{escape(found.sentence())}</p>" if found is not None and found.among > 1 else ""


def spoken(episodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rollouts with something to read; episodes of control have none."""
    return [e for e in episodes if any(e.get(k) for k in ("segments", "prompt", "completion"))]


# Reading


def read_lines(path: Path, torn: dict[str, int]) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file; lines that are none are left out and counted in `torn` under the file's name.

    Unlike `JsonLines.read`, which refuses a damaged log, because a report of a damaged run is better than none.
    """
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in filter(str.strip, file):
            record = _parse(line)
            if record:
                yield record
            else:
                torn[path.name] = torn.get(path.name, 0) + 1


def read_object(path: Path) -> dict[str, Any]:
    """A JSON file as a dict; empty if it is missing or damaged."""
    return _parse(path.read_text(encoding="utf-8", errors="replace")) if path.is_file() else {}


def _parse(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


# Header


def _title(run: Mapping[str, Any]) -> str:
    method, task = run["method"].get("id", "run"), named(run["config"].get("task"))
    return f"{method} on {task}" if task else str(method)


def _header(run: Mapping[str, Any], metrics: list[dict[str, Any]], wording: Wording) -> str:
    method, config = run["method"], run["config"]
    last = metrics[-1] if metrics else {}
    done, asked = {**last, **run["finished"]}.get(wording.counter), config.get("steps")
    seconds = run["finished"].get("seconds", last.get("seconds"))
    members, done = last.get("members", {}), None if done is None else int(done)
    steps = f"{done or 0:,}" if asked is None or (done or 0) >= asked else f"{done or 0:,} of {asked:,}"
    about = [method.get("title"), method.get("paper")]
    if method.get("parent"):
        about.append(f"derived from {method['parent']}")
    return "".join([
        f"<h1>{escape(_title(run))}</h1>",
        f'<p class="soft">{escape(" · ".join(str(a) for a in about if a))}</p>',
        facts([
            ("model", None if "model" in wording.unread else model_of(config.get("model"))),
            ("seed", config.get("seed", run["environment"].get("seed"))),
            ("members", len(next(iter(members.values()), ())) or None),
            (wording.budget, steps),
            ("training time", duration(seconds) if isinstance(seconds, (int, float)) else None),
            ("status", "finished" if run["finished"] else run["stopped"].get("why", "not finished")),
        ]),
    ])  # fmt: skip


def model_of(value: object) -> str:
    """A model by its name; one from a run's checkpoint by the run and its step."""
    parts = Path(str(value)).parts
    if "checkpoints" in parts[1:]:
        place = parts.index("checkpoints", 1)
        return " ".join((parts[place - 1], *parts[place + 1 : place + 2])).replace("step-", "at step ")
    return named(value)


def named(value: object) -> str:
    """A task or model that is given by name, path or part."""
    if isinstance(value, Mapping):
        value = value.get("id") or value.get("name") or value.get("part")
    return "" if value is None else str(value).rstrip("/").rpartition("/")[2] or str(value)


# Method, settings


def _method(method: Mapping[str, Any]) -> str:
    """The method as a tree, empty slots left out."""
    slots = [(k, v) for k, v in method.items() if k not in META and v not in (None, [], {})]
    lines = [f'<li><span class="slot">{escape(k)}</span><div>{_node(v)}</div></li>' for k, v in slots]
    return f'<ul class="tree">{"".join(lines)}</ul>' if lines else ""


def _node(value: object) -> str:
    """A part with its fields, a list of parts, or a value."""
    if isinstance(value, list) and any(isinstance(v, Mapping) for v in value):
        return "".join(f"<div>{_node(v)}</div>" for v in value)
    if not isinstance(value, Mapping):
        return f"<code>{escape(plain(value))}</code>"
    fields = [(k, v) for k, v in value.items() if k != "part"]
    flat = ", ".join(f"{k} = {plain(v)}" for k, v in fields if not _has_parts(v))
    deep = "".join(f'<li><span class="slot">{escape(k)}</span> {_node(v)}</li>' for k, v in fields if _has_parts(v))
    name = f"<b>{escape(value['part'])}</b> " if "part" in value else ""
    return f'{name}<code class="soft">{escape(flat)}</code>' + (f"<ul>{deep}</ul>" if deep else "")


def _has_parts(value: object) -> bool:
    if isinstance(value, Mapping):
        return bool(value)
    return isinstance(value, list) and any(isinstance(v, Mapping) for v in value)


def _unsaid(run: Mapping[str, Any], wording: Wording) -> dict[str, Any]:
    """Settings that the top of the page does not say."""
    config = run["config"]
    said = {"seed": config.get("seed"), "task": named(config.get("task")), "model": model_of(config.get("model"))}
    return {k: v for k, v in config.items() if k not in wording.unread and not (k in said and v == said[k])}


def _settings(values: Mapping[str, Any]) -> str:
    """A table, and what holds nothing in a line below it."""
    empty = [k for k, v in values.items() if v is None or (not v and isinstance(v, (list, dict)))]
    lines = [[breakable(_label(k)), f"<code>{escape(_setting(k, v))}</code>"]
             for k, v in values.items() if k not in empty]  # fmt: skip
    none = f'<p class="soft">None: {escape(", ".join(map(_label, empty)))}.</p>' if empty else ""
    return (rows([], lines, numeric=False) if lines else "") + none


def _label(name: str) -> str:
    return name.removesuffix("_bytes").replace("_", " ")


def _setting(name: str, value: object) -> str:
    return f"{value / 1e9:.1f} GB" if name.endswith("_bytes") and isinstance(value, int) else plain(value)


def _section(title: str, body: str) -> str:
    return f"<section><h2>{title}</h2>{body}</section>" if body else ""


def _footer(torn: Mapping[str, int]) -> str:
    notes = "".join(f" {n} damaged line{'s' * (n > 1)} of {name} left out." for name, n in torn.items())
    return f"<footer>Written by etude.{escape(notes)}</footer>"
