"""What every page shares: charts, cells, wording, provenance."""
