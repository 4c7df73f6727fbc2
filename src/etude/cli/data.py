"""`etude data`: data to learn from."""

from __future__ import annotations

from cyclopts import App

data = App(name="data", help="Data to learn from: `data make` records it, `data info` says what is in it.")
data.command("etude.cli.data_make:make", name="make", help="Record data of behaviours, in Minari's format.")
data.command("etude.cli.data_info:info", name="info", help="What is in logs, and what they can support.")
