"""`etude data`: data to learn from."""

from __future__ import annotations

from cyclopts import App

data = App(name="data", help="Data to learn from: `data info PATH` says what is in it.")
data.command("etude.cli.data_info:info", name="info", help="What is in logs, and what they can support.")
