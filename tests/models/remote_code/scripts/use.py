"""Load, generate, train three steps with a stock Trainer, load again; ``pipeline``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import absent
import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    Trainer,
    TrainingArguments,
    pipeline,
)

folder, out = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
ids = tokenizer("the cat sat on the mat", return_tensors="pt").input_ids
tokens = model.generate(ids, max_new_tokens=5, do_sample=False)
assert tokens.shape[1] > ids.shape[1]

write = pipeline("text-generation", model=folder, trust_remote_code=True)
(written,) = write("the cat sat on the mat", max_new_tokens=5, do_sample=False)
assert written["generated_text"] == tokenizer.decode(tokens[0], skip_special_tokens=True)

# What TRL does with a path whose architecture transformers lacks, read off its sources.
config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
assert getattr(transformers, config.architectures[0], None) is None
assert "AutoModelForCausalLM" in (config.auto_map or {})
placed = AutoModelForCausalLM.from_pretrained(
    folder, trust_remote_code=True, dtype=torch.float32, device_map="auto"
)
with torch.no_grad():
    assert torch.equal(placed.eval()(ids).logits, model.eval()(ids).logits)

rows = [{"input_ids": ids[0], "labels": ids[0]}] * 12
before = {name: x.detach().clone() for name, x in model.named_parameters()}
arguments = TrainingArguments(
    out, max_steps=3, per_device_train_batch_size=2, learning_rate=1e-2, report_to=[],
    save_steps=3, use_cpu=True, disable_tqdm=True,
)  # fmt: skip
trainer = Trainer(model, arguments, train_dataset=rows)
trainer.train()
still = [name for name, x in model.named_parameters() if torch.equal(x, before[name])]
assert not still, still
losses = [entry["train_loss"] for entry in trainer.state.log_history if "train_loss" in entry]
assert losses
assert all(0 < loss < 20 for loss in losses)

again = AutoModelForCausalLM.from_pretrained(f"{out}/checkpoint-3", trust_remote_code=True)
with torch.no_grad():
    assert torch.equal(again.eval()(ids).logits, model.eval()(ids).logits)
assert absent.is_absent()
print("used")
