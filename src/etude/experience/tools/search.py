"""Search in a corpus by words: BM25 over an index of SQLite's FTS5, in memory, read-only once it is made.

Words of a query that more than one document in a hundred has are left out as long as it has rarer ones, which is what
makes queries fast; equal scores are ordered by row.
"""

from __future__ import annotations

import json
import re
import sqlite3
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from etude.core.errors import DataError

COMMON = 0.01
"""Share of the documents that a word may be in and still count as rare."""
MOST_WORDS = 32
"""Of a query; later ones are left out."""
WORD = re.compile(r"\w+")
TEXTS = (".txt", ".md")


class Document(NamedTuple):
    """A text that can be found; its title may be empty."""

    title: str
    text: str

    @property
    def whole(self) -> str:
        """Title and text on a line."""
        return f"{self.title}: {self.text}" if self.title else self.text


class Index:
    """Documents that can be searched. Equal scores are ordered by row.

    Raises: DataError for a corpus without a document that has a word.

    >>> index = Index([Document("", "the moon is far"), Document("", "the sun is hot"), Document("", "a cat")])
    >>> [d.text for d in index.find("How far is the moon?", 2)]
    ['the moon is far', 'the sun is hot']
    """

    def __init__(self, documents: Iterable[Document]) -> None:
        self.documents = list(documents)
        if not any(WORD.search(d.whole) for d in self.documents):
            raise DataError("The corpus is empty: there must be at least one document with a word to search in.")
        self.connection = sqlite3.connect(":memory:", check_same_thread=False)
        weakref.finalize(self, self.connection.close)
        self.connection.execute("CREATE VIRTUAL TABLE found USING fts5(title, text, tokenize='unicode61')")
        rows = ((i + 1, d.title, d.text) for i, d in enumerate(self.documents))
        self.connection.executemany("INSERT INTO found(rowid, title, text) VALUES (?, ?, ?)", rows)
        self.connection.execute("CREATE VIRTUAL TABLE words USING fts5vocab(found, 'row')")
        self.counts: dict[str, int] = dict(self.connection.execute("SELECT term, doc FROM words"))
        self.connection.execute("PRAGMA query_only = ON")

    def find(self, query: str, count: int) -> list[Document]:
        """The `count` documents with the highest scores that have a word of the query."""
        words = self.rare(query)
        if not words:
            return []
        asked = " OR ".join(f'"{word}"' for word in words)
        chosen = "SELECT rowid FROM found WHERE found MATCH ? ORDER BY bm25(found), rowid LIMIT ?"
        return [self.documents[row - 1] for (row,) in self.connection.execute(chosen, (asked, count))]

    def rare(self, query: str) -> list[str]:
        """The words of a query that are looked for: known ones, and of these rare ones if there are any."""
        words = [w for w in dict.fromkeys(map(folded, WORD.findall(query))) if w in self.counts][:MOST_WORDS]
        rare = [w for w in words if self.counts[w] <= COMMON * len(self.documents)]
        return rare or words


def folded(word: str) -> str:
    """A word as the index has it: small letters without accents."""
    import unicodedata

    plain = unicodedata.normalize("NFKD", word.lower())
    return "".join(c for c in plain if not unicodedata.combining(c)).replace("_", " ").strip()


def corpus(path: str) -> list[Document]:
    """The documents of a folder of texts (`.txt`, `.md`), or of a `.jsonl` file whose rows have `text` and `title`.

    Raises: DataError for what is neither, or has none.
    """
    place = Path(path)
    if place.is_dir():
        files = sorted(p for p in place.rglob("*") if p.suffix.lower() in TEXTS and p.is_file())
        found = [Document(p.relative_to(place).with_suffix("").as_posix(), _read(p)) for p in files]
    elif place.is_file() and place.suffix == ".jsonl":
        lines = [line for line in _read(place).split("\n") if line.strip()]
        found = [_row(line, f"{path}:{number}") for number, line in enumerate(lines, start=1)]
    else:
        raise DataError(f"A corpus is a folder of {' and '.join(TEXTS)} files or a .jsonl file, and {path} is neither.")
    if not found:
        raise DataError(f"{path} holds no document to search in.")
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"Cannot read {path}: {getattr(error, 'strerror', None) or 'it is not UTF-8'}.") from None


def _row(line: str, where: str) -> Document:
    try:
        values = json.loads(line)
        return Document(str(values.get("title", "")), str(values["text"]))
    except (ValueError, KeyError, AttributeError):
        raise DataError(f'{where} must be an object with a text, as in {{"text": "..."}}.') from None


def searcher(path: str, count: int = 3) -> Callable[..., str]:
    """The tool `search` over a corpus."""
    index = Index(corpus(path))

    def search(query: str) -> str:
        """Search for texts by words.

        Args:
            query: what to look for.
        """
        return listed(index.find(query, count))

    return search


def listed(documents: Sequence[Document]) -> str:
    """Documents as an answer to a query.

    >>> print(listed([Document("sun", "it is hot"), Document("", "it is far")]))
    [1] sun: it is hot
    [2] it is far
    """
    if not documents:
        return "Nothing was found."
    return "\n".join(f"[{i}] {' '.join(d.whole.split())}" for i, d in enumerate(documents, start=1))
