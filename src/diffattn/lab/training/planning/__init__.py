"""What a run needs before anything is allocated: memory by part, time and cost."""
