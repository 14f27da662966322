"""Made-up questions in six classes: enough to see a protocol work, without a file."""

import random

_WORDS = {
    "animal": "horse dog cat bird fish wolf bear fox",
    "building": "house church tower bridge castle school barn mill",
    "colour": "red green blue white black brown yellow grey",
    "food": "bread cheese apple soup cake rice fruit meat",
    "weather": "rain snow wind storm sun cloud frost fog",
    "weather report": "forecast warning bulletin barometer outlook almanac chart gauge",
}
_FRAMES = (
    "what do you know of {a} and {b}",
    "tell me of the {a} before the {b}",
    "is there any {a} or {b} in the town",
    "he spoke of {a} , and then of {b}",
)


def generated_questions(per_class: int, seed: int) -> list[tuple[str, str]]:
    """Texts and labels; every class has words of its own, and one label begins as another.

    Args:
        per_class: Texts of every class.
        seed: Of the words.
    """
    generator = random.Random(f"questions-{seed}")
    questions = []
    for _ in range(per_class):
        for label, words in _WORDS.items():
            a, b = generator.sample(words.split(), 2)
            questions.append((generator.choice(_FRAMES).format(a=a, b=b), label))
    return questions
