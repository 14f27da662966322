"""lm-evaluation-harness by its own ``hf`` model, on a task of local documents."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import absent
from lm_eval import simple_evaluate

folder, work = sys.argv[1:]
documents = Path(work) / "documents.jsonl"
rows = [{"question": f"the {word} is", "choices": ["red", "blue"], "label": 0} for word in "abcd"]
documents.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
task = {
    "task": "local_choice",
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": str(documents)}},
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "{{question}}",
    "doc_to_choice": "choices",
    "doc_to_target": "label",
    "metric_list": [{"metric": "acc"}],
}
results = simple_evaluate(
    model="hf", model_args=f"pretrained={folder},trust_remote_code=True", tasks=[task],
    device="cpu", batch_size=2, bootstrap_iters=0,
)  # fmt: skip
score = results["results"]["local_choice"]["acc,none"]
assert 0 <= score <= 1
assert results["n-samples"]["local_choice"]["effective"] == len(rows)
assert absent.is_absent()
print(f"acc {score}")
