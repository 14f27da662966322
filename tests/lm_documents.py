"""Generated documents of the seven tasks, in the fields of the hub."""

import json
import random

NOUNS = ["river", "ship", "garden", "king", "letter", "window", "road", "house"]


def _words(generator, low, high):
    return " ".join(generator.choices(NOUNS, k=generator.randint(low, high)))


def document(task, generator):
    if task in ("arc_challenge", "arc_easy", "openbookqa"):
        count = 4 if task == "openbookqa" else generator.choice([3, 4, 5])
        labels = list("ABCDE"[:count])
        return {
            "id": str(generator.random()),
            "question_stem" if task == "openbookqa" else "question": _words(generator, 4, 9) + "?",
            "choices": {"text": [_words(generator, 1, 4) for _ in labels], "label": labels},
            "answerKey": generator.choice(labels),
        }
    if task == "boolq":
        return {
            "passage": f"River -- {_words(generator, 20, 40)}.",
            "question": f"is the {_words(generator, 2, 4)} old",
            "label": generator.randrange(2),
        }
    if task == "hellaswag":
        return {
            "activity_label": generator.choice(NOUNS),
            "ctx_a": f"[header] the {_words(generator, 3, 6)} [title] is new.",
            "ctx_b": _words(generator, 1, 3),
            "endings": [f"[step] {_words(generator, 3, 9)}é" for _ in range(4)],
            "label": str(generator.randrange(4)),
        }
    if task == "piqa":
        return {
            "goal": f"what is a {_words(generator, 1, 3)}",
            "sol1": _words(generator, 2, 9),
            "sol2": _words(generator, 2, 9) + " ",
            "label": generator.randrange(2),
        }
    first, second = generator.sample(NOUNS, 2)
    return {
        "sentence": f"The {first} was in the {second} for the _ was {_words(generator, 1, 3)}.",
        "option1": first,
        "option2": second,
        "answer": generator.choice("12"),
    }


def documents(task, count, seed=0):
    generator = random.Random(f"{task}-{seed}")
    return [document(task, generator) for _ in range(count)]


def write_task(folder, task, count, num_training=0):
    """``TASK.jsonl`` and, if wanted, ``TASK_train.jsonl``; the documents written."""
    folder.mkdir(exist_ok=True)
    for name, number in ((task, count), (f"{task}_train", num_training)):
        if number:
            lines = [
                json.dumps(entry, ensure_ascii=False) for entry in documents(task, number, name)
            ]
            (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return documents(task, count, task)
