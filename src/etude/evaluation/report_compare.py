"""Several runs on one page: what each came to, with intervals, and their curves in the same axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from etude.core.errors import ConfigError, RunFolderError
from etude.core.worlds import World
from etude.evaluation.page import breakable, duration, escape, page, plain, rows
from etude.evaluation.report import model_of, named, read_lines, read_object
from etude.evaluation.report_curves import ORDER, Curve, card, collect, collect_looks, group_of, is_flat, repeats_of
from etude.evaluation.report_evaluation import Found, Key, cell, measured, name_of
from etude.runtime import disk

MOST = 7
"""Runs that can be told apart by their colours."""
SETTINGS = ("id", "title", "paper", "type", "kind", "parent", "claim", "out", "callbacks")
"""What is not shown as a difference between runs: it is the run's name, or says nothing of its numbers."""


@dataclass(frozen=True)
class Side:
    """A run as the page shows it."""

    name: str
    method: Mapping[str, Any]
    config: Mapping[str, Any]
    curves: Mapping[str, Curve]
    looks: Mapping[str, Curve]
    after: Mapping[Key, Found] = field(default_factory=dict)
    seconds: float | None = None


def write_comparison(folders: Sequence[Path], out: Path) -> Path:
    """Write a page of two or more runs, finished or not. Returns its path.

    Raises: ConfigError for fewer than two runs, one that is given twice or too many; RunFolderError for what is no run.
    """
    places = [Path(f) for f in folders]
    if len({p.resolve() for p in places}) < len(places) or not 2 <= len(places) <= MOST:
        raise ConfigError(f"A page compares two to {MOST} different runs, got {len(places)}.")
    for place in places:
        if not (place / "method.json").is_file():
            raise RunFolderError(f"{place} is not a run folder: it has no method.json.")
    sides = [_side(place, name) for place, name in zip(places, names_of(places))]
    title = " against ".join(side.name for side in sides) if len(sides) == 2 else f"{len(sides)} runs"
    sections = [
        f"<h1>{escape(title)}</h1>",
        f"<h2>After training</h2>{_final(sides)}",
        f"<h2>What differs</h2>{_differences(sides)}",
        f"<h2>Curves</h2>{_curves(sides)}",
    ]
    disk.replace_file(out, page(title, "\n".join(sections)).encode())
    return out


def names_of(places: Sequence[Path]) -> list[str]:
    """A name for each run: its folder's, with as many of those above it as tell all apart.

    >>> names_of([Path("a/seed-0"), Path("b/seed-0")])
    ['a/seed-0', 'b/seed-0']
    """
    parts = [p.resolve().parts if str(p) == "." else p.parts for p in places]
    for length in range(1, max(map(len, parts)) + 1):
        named = ["/".join(each[-length:]) for each in parts]
        if len(set(named)) == len(named):
            break
    return named


def _side(folder: Path, name: str) -> Side:
    torn: dict[str, int] = {}
    metrics = list(read_lines(folder / "metrics.jsonl", torn))
    looks = collect_looks(read_lines(folder / "evaluations.jsonl", torn), metrics)
    last = metrics[-1].get("seconds") if metrics else None
    curves = {k: c for k, c in collect(metrics).items() if not k.startswith("members/")}
    return Side(
        name, read_object(folder / "method.json"), read_object(folder / "config.json"), curves, looks,
        measured(read_object(folder / "evaluation.json").get("after")), last,
    )  # fmt: skip


def _final(sides: Sequence[Side]) -> str:
    """A row for each number of the evaluation after training, and how long each run trained."""
    keys = [k for k in dict.fromkeys(k for side in sides for k in side.after) if not _is_known(k, sides)]
    names: dict[str, list[object]] = {
        "method": [side.method.get("id") for side in sides],
        "task": [named(side.config.get("task")) for side in sides],
        "model": [_begun_with(side.config) for side in sides],
    }
    lines = [[name, *(breakable(str(of or "")) for of in each)] for name, each in names.items() if any(each)]
    lines += [[breakable(name_of(k)), *(cell(k, side.after.get(k)) for side in sides)] for k in keys]
    steps = [max((c.steps[-1] for c in side.curves.values()), default=0) for side in sides]
    lines.append(["steps", *(f"{s:,.0f}" for s in steps)])
    lines.append(["training time", *("" if s.seconds is None else duration(s.seconds) for s in sides)])
    note = (
        "Brackets are 95% intervals over problems, or over members. They say nothing of other seeds: "
        "<code>etude compare</code> trains several and compares them with statistics."
    )
    return rows(["", *(breakable(s.name) for s in sides)], lines) + f'<p class="soft">{note}</p>'


def _begun_with(config: Mapping[str, Any]) -> str:
    """The model; '' where the world has none and its config says what it says everywhere."""
    speaks = config.get("world", World.LANGUAGE) == World.LANGUAGE
    return model_of(config.get("model")) if speaks or config.get("model") != "tiny" else ""


def _is_known(key: Key, sides: Sequence[Side]) -> bool:
    """Whether a reward is the split's first number in every run."""
    firsts = [next(k for k in s.after if k[0] == key[0]) for s in sides if key in s.after]
    own = [s for s in sides if key in s.after]
    return key[1] == "reward" and all(f != key and s.after[f] == s.after[key] for f, s in zip(firsts, own))


def _differences(sides: Sequence[Side]) -> str:
    """Fields of the methods and settings that are not the same everywhere."""
    fields = [{**dict(_leaves(s.method)), **dict(_leaves(s.config))} for s in sides]
    keys = [k for k in dict.fromkeys(k for f in fields for k in f) if k.split(".")[0] not in SETTINGS]
    slots = {k.removesuffix(".part") for k in keys if k.endswith(".part")}
    lacked = [f"{slot}." for slot in slots if any(f"{slot}.part" not in f for f in fields)]
    keys = [k for k in keys if not any(k.startswith(p) and k != f"{p}part" for p in lacked)]  # one line for the part
    if any(k.startswith("rewards.") and k.endswith(".function") for k in keys):
        keys = [k for k in keys if k.split(".")[0] != "reward"]  # which says the same
    lines = []
    for key in keys:
        values = [plain(f[k]) if (k := _held(key, f)) in f else "" for f in fields]
        if len(set(values)) > 1 and key not in slots:
            lines.append([breakable(key), *(f"<code>{escape(v)}</code>" for v in values)])
    empty = '<p class="soft">Nothing but where they are.</p>'
    return rows(["", *(breakable(s.name) for s in sides)], lines, numeric=False) if lines else empty


def _held(key: str, fields: Mapping[str, Any]) -> str:
    """A field's own path, or for the name of a part that of its slot, where the slot holds none."""
    slot = key.removesuffix(".part")
    return slot if key not in fields and slot in fields else key


def _leaves(value: object, path: str = "") -> list[tuple[str, Any]]:
    """Every value of a JSON tree by its path."""
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    pairs = [leaf for key, inner in items for leaf in _leaves(inner, f"{path}.{key}".lstrip("."))]
    return pairs or [(path, value)]


def _curves(sides: Sequence[Side]) -> str:
    """A chart of every metric that two or more runs have, and that moves in one of them."""
    parts = [("Evaluation", [side.looks for side in sides])]
    parts += [(title, [{k: c for k, c in s.curves.items() if group_of(k) == title} for s in sides]) for title in ORDER]
    sections = []
    for title, found in parts:
        repeats = repeats_of([{**side.looks, **side.curves} for side in sides])
        known = [k for k in dict.fromkeys(k for f in found for k in f) if k not in repeats]
        shared = [k for k in known if sum(k in f for f in found) > 1]
        moving = [k for k in shared if not all(is_flat(k, f[k]) for f in found if k in f)]
        cards = [card(k, {s.name: f[k] for s, f in zip(sides, found) if k in f}) for k in moving]
        sections += [f'<h3>{title}</h3><div class="grid">{"".join(cards)}</div>'] if cards else []
    return "".join(sections) or '<p class="soft">The runs share no metric that moves.</p>'
