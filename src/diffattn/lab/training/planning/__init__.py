"""Plan a run before anything is allocated: memory by part, time and cost."""
