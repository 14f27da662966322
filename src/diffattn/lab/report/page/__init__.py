"""Elements, charts, tables and wording of every page."""
