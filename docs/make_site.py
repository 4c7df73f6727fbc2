"""What mkdocs does besides: the first page, the reference of every module, and files that pages link to.

`mkdocs.yml` names it as a hook. The first page is the README; the reference is made from the docstrings; what a page
links to outside of docs/ (a method's file, a recipe) is put below source/.
"""

from __future__ import annotations

import ast
import posixpath
import re
import textwrap
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "etude"
PAGES = (".md", ".png", ".svg", ".jsonl")
"""What mkdocs takes from docs/ as it is."""
LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")
INNER = {"cli", "methods", "experiments", "starts"}
"""Rooms that the reference leaves out: methods have pages of their own, the others are no interface."""


def on_files(files: Files, config: Any) -> Files:
    """Add the first page, the reference, and the files outside of docs/ that pages link to."""
    # two pages would be the index of the site: the list of pages goes by another name
    for page in list(files):
        if page.src_uri == "README.md":
            files.remove(page)
    files.append(File.generated(config, "index.md", content=(ROOT / "README.md").read_text(encoding="utf-8")))
    for name, text in reference().items():
        files.append(File.generated(config, f"api/{name}.md", content=text))
    for path in sorted(linked(files)):
        listed = "\n".join(sorted(p.name for p in path.iterdir())) if path.is_dir() else ""
        content = listed or path.read_text(encoding="utf-8")
        files.append(File.generated(config, place_of(path), content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Let links lead to where things are in the site."""
    home = home_of(page.file.src_uri)

    def moved(link: re.Match[str]) -> str:
        target = leads_to(home, link[2])
        if target is None:
            return link[0]
        place = posixpath.relpath(place_of(target), posixpath.dirname(page.file.src_uri) or ".")
        return f"{link[1]}{place}{link[3]}"

    return LINK.sub(moved, markdown)


def place_of(path: Path) -> str:
    """Where the site has a file of the checkout."""
    if path in (ROOT / "README.md", DOCS / "README.md"):
        return "index.md"
    if path.is_relative_to(DOCS) and path.suffix in PAGES:
        return path.relative_to(DOCS).as_posix()
    return f"source/{path.relative_to(ROOT).as_posix()}" + ("" if path.suffix == ".md" else ".txt")


def home_of(uri: str) -> Path:
    """The folder in which a page was written."""
    if uri == "index.md":
        return ROOT
    if uri.startswith("source/"):
        return (ROOT / uri.removeprefix("source/")).parent
    return (DOCS / uri).parent


def leads_to(home: Path, link: str) -> Path | None:
    """The file of the checkout that a relative link means; a folder's page; None for anything else."""
    if ":" in link or link.startswith("/"):
        return None
    path = (home / link).resolve()
    if (path / "README.md").is_file():
        path = path / "README.md"
    return path if path.exists() and path.is_relative_to(ROOT) else None


def linked(files: Files) -> set[Path]:
    """Files that pages link to and mkdocs does not take, and those that these link to."""
    found: set[Path] = set()
    waiting = [(home_of(f.src_uri), f.content_string) for f in files if f.src_uri.endswith(".md")]
    while waiting:
        home, text = waiting.pop()
        targets = {t for link in LINK.finditer(text) if (t := leads_to(home, link[2])) is not None}
        for target in targets - found:
            if place_of(target).startswith("source/"):
                found.add(target)
                if target.suffix == ".md":
                    waiting.append((target.parent, target.read_text(encoding="utf-8")))
    return found


# The reference


def reference() -> dict[str, str]:
    """Pages of the reference by name: the verbs, and a page for each room of the library."""
    rooms = sorted(p for p in SOURCE.iterdir() if (p / "__init__.py").is_file() and p.name not in INNER)
    pages = {room.name: page(room) for room in rooms}
    listed = "\n".join(f"- [{name}]({name}.md)" for name in pages)
    verbs = [described(SOURCE / file, name) for name, file in VERBS.items()]
    return {"index": "\n\n".join(["# Reference", *verbs, "## Rooms", listed]) + "\n", **pages}


def page(room: Path) -> str:
    """Every module of a room that has something public."""
    paths = [p for p in sorted(room.rglob("*.py")) if not p.name.startswith("_")]
    return f"# {room.name}\n\n" + "\n\n".join(filter(None, map(described, paths))) + "\n"


def described(path: Path, only: str = "") -> str:
    """What is public in a module, or one thing of it; empty if nothing is."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    name = ".".join(("etude", *path.relative_to(SOURCE).with_suffix("").parts))
    things = [n for n in tree.body if isinstance(n, (ast.ClassDef, ast.FunctionDef)) and n.name[0] != "_"]
    blocks = [block(n, "etude." if only else "") for n in things if not only or n.name == only]
    if only or not blocks:
        return "\n\n".join(blocks)
    head = [f"## {name}", *filter(None, [fenced(ast.get_docstring(tree))])]
    return "\n\n".join([*head, *blocks])


def block(node: ast.ClassDef | ast.FunctionDef, home: str) -> str:
    """A class or function: how it is called, and its docstring. `home` stands before its name."""
    if isinstance(node, ast.FunctionDef):
        return "\n\n".join(
            [f"### {home}{node.name}", fenced(signature(node), "python"), fenced(ast.get_docstring(node))]
        )
    fields = [ast.unparse(n) for n in node.body if isinstance(n, ast.AnnAssign) and ast.unparse(n.target)[0] != "_"]
    methods = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name[0] != "_" and ast.get_docstring(n)]
    bases = ", ".join(map(ast.unparse, node.bases))
    head = f"class {node.name}({bases})" if bases else f"class {node.name}"
    shown = "\n".join([head + (":" if fields else ""), *(f"    {f}" for f in fields)])
    said = [f"{signature(m)}\n{textwrap.indent(ast.get_docstring(m) or '', '    ')}" for m in methods]
    parts = [f"### {home}{node.name}", fenced(shown, "python"), fenced(ast.get_docstring(node))]
    return "\n\n".join(filter(None, [*parts, fenced("\n\n".join(said))]))


def signature(node: ast.FunctionDef) -> str:
    """The first line of a function, on several if it is long."""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    line = f"def {node.name}({ast.unparse(node.args)}){returns}"
    return line if len(line) <= 100 else f"def {node.name}(\n    {ast.unparse(node.args)}\n){returns}"


def fenced(text: str | None, language: str = "text") -> str:
    """A block of code; empty for no text."""
    return f"````{language}\n{text}\n````" if text else ""


VERBS = {
    "train": "runs/train.py", "resume": "runs/train.py", "evaluate": "runs/evaluate.py",
    "compare": "runs/comparing.py", "export": "runs/export.py", "Options": "runs/training.py",
    "Result": "runs/training.py", "EvaluationOptions": "runs/worlds/__init__.py",
}  # fmt: skip
"""What `import etude` gives, and where it is written."""
