"""The report of a study: reads files, never models, and works without torch."""
