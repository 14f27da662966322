"""Records on disk: runs, results and costs. Standard library only."""
