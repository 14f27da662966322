"""Numbers and tables that documents and pages hold, from their records."""
