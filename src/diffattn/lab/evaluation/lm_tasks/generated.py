"""Made-up documents of the seven tasks: to see the protocol work without any data."""

import random
from typing import Any

from diffattn.lab.evaluation.lm_tasks.documents import LocalDocuments, read_document

_PEOPLE = ("Anna", "Peter", "Maria", "Tom", "Ines", "Karl", "Ruth", "Omar")
_THINGS = {
    "bridge": "a river", "ladder": "a roof", "lamp": "the dark", "umbrella": "the rain",
    "kettle": "cold water", "needle": "a torn shirt", "shovel": "deep snow", "key": "a locked door",
}  # fmt: skip
_NUM_TRAINING = 16


def generated_documents(task: str, count: int, seed: int = 0) -> LocalDocuments:
    """``count`` documents of a task, and 16 to draw examples from; equal seeds make equal ones."""
    generator = random.Random(f"{task}-{seed}")
    made = [read_document(task, _record(task, generator)) for _ in range(count + _NUM_TRAINING)]
    return LocalDocuments(made[:count], made[count:], ())


def _record(task: str, generator: random.Random) -> dict[str, Any]:
    """One document in the fields of the hub."""
    things = generator.sample(sorted(_THINGS), 4)
    right = generator.randrange(4)
    use, place = _THINGS[things[right]], generator.randrange(2)
    first, second = generator.sample(_PEOPLE, 2)
    if task in ("arc_challenge", "arc_easy", "openbookqa"):
        return {
            "question_stem" if task == "openbookqa" else "question": f"What helps against {use}?",
            "choices": {"text": [f"a {thing}" for thing in things], "label": list("ABCD")},
            "answerKey": "ABCD"[right],
        }
    if task == "boolq":
        asked = things[right] if place else things[right - 1]
        passage = f"{first} had a {things[right]}, and {second} knew {use} well."
        return {"passage": passage, "question": f"did {first} have a {asked}", "label": place}
    if task == "hellaswag":
        return {
            "activity_label": "Housework",
            "ctx_a": f"{first} has to do with {use}.",
            "ctx_b": f"{first.lower()} then",
            "endings": [f"takes a {thing} and goes on." for thing in things],
            "label": str(right),
        }
    if task == "piqa":
        ways = [f"Take a {things[right]}.", f"Take a {things[right - 1]}."]
        goal = {"goal": f"do with {use}", "label": place}
        return goal | {"sol1": ways[place], "sol2": ways[1 - place]}
    sentence = f"{first} gave {second} the {things[right]} because _ had to do with {use}."
    options = [second, first] if place == 0 else [first, second]
    answers = {"option1": options[0], "option2": options[1], "answer": "12"[place]}
    return {"sentence": sentence} | answers
