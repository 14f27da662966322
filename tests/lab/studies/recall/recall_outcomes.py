"""What ``results.json`` of a run on a recall task may hold."""


def outcome(run, solved_step=None, loss=1.0, steps=4, accuracy=None):
    """Numbers are made up."""
    if accuracy is None:
        accuracy = 0.5 if solved_step is None else 1.0
    entry = {
        "run": run,
        "solved": solved_step is not None,
        "solved_step": solved_step,
        "steps": steps,
        "validation_loss": loss,
        "test_accuracy": accuracy,
        "test_by_query": [0.5, 0.25],
        "test_sequences": 16,
        "largest_write": 0.5,
    }
    depths = {"0.0": 0.5, "1.0": 0.25} if run.startswith("multi_needle") else None
    return entry | ({} if depths is None else {"test_by_depth": depths})
