"""Model folders with one thing changed: use them as a stranger's, and judge how that ends."""

import json
import math
import shutil

from children import in_child
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.inference.scoring import Continuation


def use(folder):
    """Load a model, let it score and write: all answers must be numbers."""
    model = LanguageModel.load(str(folder), device="cpu")
    (score,) = model.score([Continuation((5, 6, 7), (8, 9))])
    (written,) = model.generate([[5, 6, 7]], max_new_tokens=2)
    assert all(map(math.isfinite, score.token_logprobs))
    assert len(written.ids) <= 2
    return [*score.token_logprobs, *written.ids]


def fault(outcome, *, names=(), must_fail=False):
    """What is wrong with an outcome, or ``None``."""
    kind, value = outcome
    if kind == "done":
        return "accepted" if must_fail else None
    if kind == "died":
        return f"the process ended by {value}"
    kinds, message, trace = value
    if "DiffAttnError" not in kinds:
        return f"{kinds[0]}: {message[:200]}\n{trace}"
    if "\n" in message or len(message) > 1_200:
        return f"not one line: {message[:200]!r}"
    missing = [name for name in names if name not in message]
    return f"does not name {missing}: {message}" if missing else None


def damaged(whole_folder, tmp_path, change):
    """A copy of a folder to which ``change`` was done."""
    folder = tmp_path / "case"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole_folder, folder)
    change(folder)
    return folder


def try_folder(tally, case, whole_folder, tmp_path, change, **wanted):
    """Count how a process ends that uses a changed copy of a folder."""
    folder = damaged(whole_folder, tmp_path, change)
    tally.check(case[:150], fault(in_child(lambda: use(folder)), **wanted))


def written(file, content, folder):
    (folder / file).write_bytes(content)


def edited(file, update):
    def change(folder):
        path = folder / file
        content = json.loads(path.read_text())
        update(content)
        path.write_text(json.dumps(content))

    return change
