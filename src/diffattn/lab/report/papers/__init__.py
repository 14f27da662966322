"""The page that sets the papers' tables and figures beside what was measured."""
