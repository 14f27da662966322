"""Language-model tasks by lm-evaluation-harness's prompts and scores."""
