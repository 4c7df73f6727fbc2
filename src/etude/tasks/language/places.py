"""Where the rows of each split lie: a file, a folder of files, a folder of `save_to_disk`, a data set of the hub.

Splits of a folder are named as the `datasets` library does it: by shards (`data/train_sft-00000-of-00002.parquet`),
else by folders in it (`train/`, `my_test/`), else by file names (`train_1.csv`, `dev.jsonl`), a keyword standing
between dots, dashes, underscores, spaces or digits; where there is none, all files are one split.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath

from etude.core.errors import DataError, UnknownNameError
from etude.tasks import HUB, OWNED
from etude.tasks.language import tables
from etude.tasks.language.reading import Reading, Table, opened
from etude.tasks.language.rows import SUFFIXES, Fault, Row, kind, read_rows

KEYWORDS = {
    "train": ("train", "training"),
    "test": ("test", "testing", "eval", "evaluation"),
    "validation": ("validation", "valid", "dev", "val"),
}
SHARD = re.compile(r"data/([^/]+)-\d{5}-of-\d{5}.*\..*")
BETWEEN = "[-._ 0-9]"
IGNORED = ("config.json", "dataset_info.json", "dataset_infos.json", *tables.MARKS)
"""Files beside the data that are no data."""


@dataclass(frozen=True)
class Source:
    """A file or a table: what to call it, and how to get its rows."""

    name: str
    read: Callable[[], tuple[list[Row], list[Fault]]]
    open: Callable[[], Reading]
    """Its rows, one at a time."""


def find(
    path: str, subset: str | None = None, revision: str | None = None, names: Sequence[str] = (), stream: bool = False
) -> dict[str, list[Source]]:
    """Sources of each split, 'train' first.

    Args:
        subset, revision: of a data set of the hub.
        names: what splits are to be called, as in 'train=train_sft'; the others are left out then.
        stream: leave a data set of the hub where it is, and read its rows over the network.

    Raises: DataError for what does not exist or holds no data; MissingExtraError for what a package must read.
    """
    place = Path(path)
    if (subset or revision) and (place.exists() or not is_hub(path)):
        raise DataError(f"task.subset and task.revision are for data sets of the hub (owner/name), and {path} is none.")
    if place.is_file():
        return _named(path, {"train": [_file(place)]}, names)
    if not place.is_dir():
        if not is_hub(path):
            raise DataError(f"There is no file or folder {path}.")
        found = tables.hub(path.removeprefix(HUB), subset, revision, stream)
    elif tables.is_saved(place):
        found = tables.saved(place)
    else:
        return _named(path, _in_folder(place), names)
    return _named(path, {k: [_table(v, f"{path}[{k}]")] for k, v in found.items()}, names)


def is_hub(path: str) -> bool:
    """Whether a text can be the name of a data set of the hub: 'owner/name', perhaps with 'hub:' before it."""
    return not kind(path) and OWNED.fullmatch(path.removeprefix(HUB)) is not None


def _file(path: Path) -> Source:
    return Source(str(path), partial(read_rows, path), partial(opened, path))


def _table(dataset: object, name: str) -> Source:
    return Source(name, partial(tables.dataset_rows, dataset, name), partial(Table, dataset, name))


def _in_folder(folder: Path) -> dict[str, list[Source]]:
    """The data files of a folder by split."""
    files = sorted(p.relative_to(folder) for p in folder.rglob("*") if p.is_file() and kind(p))
    files = [f for f in files if f.name not in IGNORED and not any(part.startswith((".", "_")) for part in f.parts)]
    if not files:
        raise DataError(f"The folder {folder} holds no data: no file ends in {', '.join(SUFFIXES)}.")
    shards = {f: match[1] for f in files if (match := SHARD.fullmatch(f.as_posix()))}
    if shards:
        return {split: [_file(folder / f) for f in shards if shards[f] == split] for split in shards.values()}
    for names in (slice(None, -1), slice(-1, None)):  # folders first
        named = {f: _splits(folder, f, f.parts[names]) for f in files}
        splits = {split: [f for f in files if split in named[f]] for split in KEYWORDS}
        if any(splits.values()):
            return {k: [_file(folder / f) for f in v] for k, v in splits.items() if v}
    return {"train": [_file(folder / f) for f in files]}


def _splits(folder: Path, file: PurePath, names: Sequence[str]) -> list[str]:
    """The split that a file's name or its folders' name. Raises DataError if they name two."""
    found = [
        split
        for split, words in KEYWORDS.items()
        if any(re.search(rf"(^|{BETWEEN})({'|'.join(words)})({BETWEEN}|$)", name) for name in names)
    ]
    if len(found) > 1:
        raise DataError(f"{folder / file} is named after two splits, {' and '.join(found)}: rename it.")
    return found


def _named(path: str, splits: dict[str, list[Source]], names: Sequence[str]) -> dict[str, list[Source]]:
    """Splits under the names that etude has for them, 'train' first."""
    known = {word: split for split, words in KEYWORDS.items() for word in words}
    if names:
        known = {own: name for name, own in (item.split("=", 1) for item in names)}
        for own in known:
            if own not in splits:
                raise UnknownNameError(f"split of {path}", own, splits, f"It has: {', '.join(splits)}.")
        splits = {own: splits[own] for own in known}
    named: dict[str, list[Source]] = {}
    for split, sources in splits.items():
        named.setdefault(known.get(split, split), []).extend(sources)
    if "train" not in named:
        have = ", ".join(splits)
        raise DataError(
            f"{path} must have a split to train on, as in train.jsonl; it has: {have}. If one of them is that: --set "
            f"task.rename_splits=train={next(iter(splits))}."
        )
    return {"train": named.pop("train"), **named}
