"""What a terminal shows beyond the results."""
