"""Files of the value family are short: 60 lines of code at most, 150 with parts of their own."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

import pytest

from etude.methods import value

FOLDER = Path(value.__path__[0])
BLANK = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip


def lines_of_code(source: str) -> int:
    """Lines that are neither blank, comment nor docstring."""
    said = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    code = {n for t in tokens if t.type not in BLANK for n in range(t.start[0], t.end[0] + 1)}
    return len(code - said)


def test_code_is_what_is_counted() -> None:
    source = '"""Said.\n\nMore.\n"""\n\n# why\nx = (\n    1\n)\n\n\ndef f():\n    """Says."""\n    return x\n'
    assert lines_of_code(source) == 5


@pytest.mark.parametrize("file", sorted(FOLDER.rglob("*.py")), ids=lambda f: str(f.relative_to(FOLDER)))
def test_a_file_fits_on_a_screen_or_two(file: Path) -> None:
    source = file.read_text()
    own = any(isinstance(node, ast.ClassDef) for node in ast.parse(source).body)
    assert lines_of_code(source) <= (150 if own else 60)
