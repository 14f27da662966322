"""Multiple-choice tasks with lm-evaluation-harness's prompts and scores."""
