"""Search by words: scores of BM25, ties by row, common words, whatever the query is."""

from __future__ import annotations

import gc
import json
import math
import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from etude.core.episodes import Problem, Segment
from etude.core.errors import ConfigError, DataError
from etude.experience.calls import NamedCalls
from etude.experience.toolbox import ToolCalls
from etude.experience.tools.search import Document, Index, corpus
from language_toys import Toy


def test_order_is_that_of_bm25() -> None:
    """k1 = 1.2 and b = 0.75, as SQLite says, with idf = ln((N - n + 0.5) / (n + 0.5))."""
    source = random.Random(0)
    texts = [" ".join(source.choices("abcdefghijklmnopqrstuvwxyz", k=source.randrange(2, 9))) for _ in range(300)]
    index = Index([Document("", t) for t in texts])
    words = [t.split() for t in texts]
    mean = sum(map(len, words)) / len(words)

    def score(own: list[str], query: list[str]) -> float:
        total = 0.0
        for w in query:
            n, f = sum(w in each for each in words), own.count(w)
            idf = max(1e-6, math.log((len(words) - n + 0.5) / (n + 0.5)))
            total += idf * f * 2.2 / (f + 1.2 * (0.25 + 0.75 * len(own) / mean))
        return total

    for query in (["a", "q"], ["z"], ["x", "y", "j"]):
        ranked = sorted(range(300), key=lambda i: (-round(score(words[i], query), 9), i))[:10]
        assert index.find(" ".join(query), 10) == [index.documents[i] for i in ranked]


def test_common_words_are_left_out_where_there_are_rarer_ones() -> None:
    documents = [Document("", f"the word{i} is") for i in range(200)]
    index = Index(documents)
    assert index.rare("is the WORD7 the unknown") == ["word7"] and index.rare("the") == ["the"]
    assert index.find("the word7", 3) == [documents[7]]
    assert index.find("the", 3) == documents[:3], "equal scores by row"


@pytest.mark.parametrize("query", ["", "?!", '"', "NEAR(", "a AND", "text:x", "-x", "\x00", "é" * 1000, "x*", "_"])
def test_no_query_is_an_error(query: str) -> None:
    index = Index([Document("Café", "a near x and b_c"), Document("", "é")])
    assert isinstance(index.find(query, 2), list)
    assert index.find("CAFE", 1)[0].title == "Café" and len(index.find("c", 5)) == 1


def test_corpora(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/moon.md").write_text("It is far.")
    (tmp_path / "sun.txt").write_text("It is hot.")
    (tmp_path / "skip.bin").write_bytes(b"\xff")
    assert corpus(str(tmp_path)) == [Document("deep/moon", "It is far."), Document("sun", "It is hot.")]
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"text": "x", "title": "t"}) + "\n\n" + json.dumps({"text": "y"}))
    assert corpus(str(rows)) == [Document("t", "x"), Document("", "y")]
    rows.write_text("{}")
    for path, sentence in ((rows, r"rows.jsonl:1 must be an object with a text"), (tmp_path / "no", "is neither")):
        with pytest.raises(DataError, match=sentence):
            corpus(str(path))
    with pytest.raises(DataError, match="The corpus is empty"):
        Index([Document("", "?")])


@pytest.mark.slow
def test_as_a_tool(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "the moon is far", "title": "moon"}\n{"text": "the sun is hot"}\n')
    world: Any = Toy(("x",), tools=ToolCalls(functions=f"search:{tmp_path}/a.jsonl", calls=NamedCalls())).played_in()
    world.reset(Problem("1", "x"), 0)
    said = [world.step(Segment("assistant", f"search: {q}")).segments[0].text for q in ("how far?", "cats")]
    assert said == ["[1] moon: the moon is far", "Nothing was found."]
    (tmp_path / "none").mkdir()
    with pytest.raises(ConfigError, match="holds no document to search in"):
        Toy(tools=ToolCalls(functions=f"search:{tmp_path}/none")).played_in()


def test_an_index_that_nobody_has_is_closed() -> None:
    index = Index([Document("", "the moon is far")])
    connection = index.connection
    del index
    gc.collect()
    with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
        connection.execute("SELECT 1")
