"""What watches over a run: signals, measurements, trackers, policies of the guard."""
