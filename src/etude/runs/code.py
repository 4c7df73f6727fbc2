"""What of a source file decides what it computes: all but its comments, docstrings and empty lines."""

from __future__ import annotations

import ast
import hashlib
import io
import tokenize
from functools import cache
from pathlib import Path


def code_of(path: Path) -> str:
    """A source file without what no number rests on."""
    return code_in(path.read_text(encoding="utf-8"))


@cache
def code_in(text: str) -> str:
    """A source text without what no number rests on.

    >>> code_in('''# one
    ... x = 1  # and
    ... ''')
    'x = 1'
    """
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for said in filter(_says, node.body):  # docstrings, and those of fields
                for row in range(said.lineno - 1, said.end_lineno or said.lineno):
                    lines[row] = ""
    return "\n".join(line.rstrip() for line in lines if line.strip())


def _says(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def text_hash(text: str) -> str:
    """A short name for a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]
