"""What is written to disk: run records, results and costs. Standard library only."""
