"""Facts of a short story spread over a long text, and a question about them."""

import re
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from diffattn.errors import ConfigError
from diffattn.lab.evaluation.long_context.babilong.stories import LABELS, STORIES, Story, mentioned
from diffattn.lab.evaluation.long_context.haystack import ChatProtocol, insert_sentences
from diffattn.lab.evaluation.long_context.lengths import (
    LENGTHS,
    by_length_and_task,
    length_metric,
    most_that_fits,
)
from diffattn.lab.evaluation.metrics import GUESSES, guess_metrics
from diffattn.lab.evaluation.protocol import Item, Summary, prompt_facts, split_batches
from diffattn.lab.inference.language_model import LanguageModel

_EXAMPLES = {
    "qa1": (
        ("Alan went to the balcony. Judith moved to the cellar. Alan travelled to the attic.",
         "Where is Alan?", "attic"),
        ("Judith went to the shop. Charlie journeyed to the balcony.",
         "Where is Judith?", "shop"),
    ),
    "qa2": (
        ("Charlie went to the cellar. Charlie took the bottle. Charlie moved to the attic.",
         "Where is the bottle?", "attic"),
        ("Alan moved to the shop. Alan got the lamp. Alan dropped the lamp. "
         "Alan went to the balcony.", "Where is the lamp?", "shop"),
    ),
    "qa3": (
        ("Judith went to the attic. Judith took the lamp. Judith moved to the shop. "
         "Judith journeyed to the cellar.", "Where was the lamp before the cellar?", "shop"),
        ("Alan went to the balcony. Alan got the bottle. Alan went to the attic. "
         "Alan left the bottle.", "Where was the bottle before the attic?", "balcony"),
    ),
    "qa4": (
        ("The attic is north of the shop. The cellar is east of the shop.",
         "What is north of the shop?", "attic"),
        ("The balcony is west of the attic. The attic is south of the cellar.",
         "What is the attic south of?", "cellar"),
    ),
    "qa5": (
        ("Alan took the lamp. Alan gave the lamp to Judith. Charlie went to the attic.",
         "Who received the lamp?", "Judith"),
        ("Charlie got the bottle. Charlie handed the bottle to Alan. Alan went to the shop.",
         "What did Charlie give to Alan?", "bottle"),
    ),
}  # fmt: skip
"""Worked examples per task: facts, question, answer. No story has their names and places."""
_INSTRUCTION = (
    "Some facts are hidden among sentences that have nothing to do with them. Answer the question "
    "from the facts alone, with one word. Where facts differ, the later one holds."
)


def question_text(task: str, context: str, question: str) -> str:
    """The prompt of a task: instruction, worked examples, context and question."""
    examples = "\n\n".join(
        f"<example>\n{facts}\nQuestion: {asked}\nAnswer: {answer}\n</example>"
        for facts, asked, answer in _EXAMPLES[task]
    )
    return f"{_INSTRUCTION}\n\n{examples}\n\n<context>\n{context}\n</context>\nQuestion: {question}"


def is_right(output: str, answer: str, question: str, labels: Sequence[str]) -> float:
    """1 if the first sentence of the output names the answer and no other label, else 0: the score
    of booydar/babilong. Labels that the question names do not count, as they are never answers."""
    first = _SENTENCE_END.split(output.strip().lower(), maxsplit=1)[0]
    named = set(map(str.lower, labels)) & set(_WORD.findall(first))
    return float(named - set(_WORD.findall(question.lower())) == {answer.lower()})


_SENTENCE_END = re.compile(r"[.\n]|<context>|<example>|question")
_WORD = re.compile(r"\w+")
GOOD = 0.85  # BABILong's threshold: a model handles a length with this mean accuracy
_STANDARD = (0, 1_024, 2_048, *LENGTHS)


class BabiLong(ChatProtocol):
    """Questions that one to three facts answer, spread between the sentences of a text."""

    name = "babilong"
    choices = {
        "stories": "written by this project's own rules after bAbI's tasks 1 to 5, with up to 42 "
        "facts; every question has one answer; the same stories at every length "
        "(upstream: the bAbI files)",
        "background": "the corpus named, from a random sentence on per sample (upstream: PG-19); "
        "filled word by word, the last sentence is cut",
        "length": "BOS, instruction, examples, text, question and generation budget (upstream: "
        "the text alone); 0 is the facts without background",
        "places": "uniform over the gaps between sentences, with repeats, order of facts kept",
        "prompt": "instruction and two worked examples of this project, answers of one word for "
        "all tasks; completion after 'Answer:', or the chat template by chat=true",
        "score": "first sentence of the output (up to '.', a line end, <context>, <example> or "
        "'question'); exactly one label of the task not named in the question, and it is the "
        "target; labels are whole words (upstream: substrings)",
        "guess": "one of the labels, of the kind that is asked for, that the facts mention and the "
        "question does not; and the last of them",
        "logprob": "teacher-forced log-probability of the answer beside it",
        "effective length": "longest length with a mean over tasks of 0.85 or more",
    }
    quick = {"lengths": (0, 1_024), "samples": 2}

    lengths: tuple[int, ...] | None = None
    """Lengths in tokens, generation included; 0 is without background. Default: 0 and those of
    1K, 2K, 4K, ... 128K that hold the prompt and fit the model."""
    tasks: tuple[str, ...] = ("qa1", "qa2", "qa3", "qa4", "qa5")
    samples: int = 100  # stories per task and length
    max_new_tokens: int = 16
    seed: int = 42

    def __post_init__(self) -> None:
        self.require_at_least(0, "lengths")
        self.require_at_least(1, "samples", "max_new_tokens")
        self.require_names("tasks", STORIES)

    def batches(self, model: LanguageModel) -> list[list[Item]]:
        lengths = self.lengths_that_fit(model, _STANDARD)
        least = max(
            self.count(model, self._text(model, task, self._story(task, index)))
            + self.max_new_tokens
            for task in self.tasks
            for index in range(self.samples)
        )
        if self.lengths is None:
            lengths = tuple(n for n in lengths if n == 0 or n >= least)
        short = [n for n in lengths if 0 < n < least]
        if short or least > model.max_length:
            raise ConfigError(
                f"babilong: a length of {min([*short, model.max_length])} tokens is too short; "
                f"with this tokenizer facts and prompt alone need at least {least}."
            )
        if any(lengths):
            self.require_words(model, max(lengths))
        batches = [
            [
                Item(
                    id=f"{n}-{task}-{index}",
                    payload=(n, task, index, max(lengths)),
                    cluster=f"{task}-{index}",  # the same story at every length
                )
                for index in range(self.samples)
            ]
            for n in lengths
            for task in self.tasks
        ]
        return split_batches(batches, 8)

    def ask(self, model: LanguageModel, items: Sequence[Item]) -> list[dict[str, Any]]:
        asked = [self._sample(model, *item.payload) for item in items]
        done = model.complete(
            [text for _, text, _, _ in asked],
            [story.answer for story, *_ in asked],
            max_new_tokens=self.max_new_tokens,
            chat=self.chat,
        )
        rows: list[dict[str, Any]] = []
        for item, (story, _, depths, haystack), written in zip(items, asked, done, strict=True):
            length, task, index, _ = item.payload
            right = is_right(written.text, story.answer, story.question, LABELS[task])
            # Guesses that do not follow the story: a random label, and the last label.
            labels = mentioned(task, story)
            rows.append(
                {
                    "length": length,
                    "task": task,
                    "index": index,
                    "facts": list(story.facts),
                    "depths": depths,
                    "question": story.question,
                    "expected": story.answer,
                    "output": written.text,
                    "prompt_tokens": written.prompt_tokens,
                    "prompt": prompt_facts(written.prompt),
                    "haystack": haystack,
                    GUESSES[0]: 1 / len(set(labels)),
                    GUESSES[1]: float(labels[-1] == story.answer),
                    "scores": {"accuracy": right, "logprob_per_token": written.logprob_per_token},
                }
            )
        return rows

    def summarise(self, rows: Sequence[Mapping[str, Any]]) -> Summary:
        lengths = sorted({int(row["length"]) for row in rows})
        metrics, means, grid = by_length_and_task(rows, self.tasks, "accuracy")
        metrics += guess_metrics(rows, {})
        metrics.append(length_metric("effective_length", means, GOOD, len(rows)))
        skipped = [n for n in _STANDARD if n < max(lengths) and n not in lengths]
        tables = {
            "accuracy": {"lengths": lengths, "tasks": list(self.tasks), "accuracy": grid},
            "threshold": GOOD,
            "haystack_sha256": sorted({row["haystack"] for row in rows if row["haystack"]}),
            "too_short_for_the_prompt": skipped if self.lengths is None else [],
        }
        return Summary(metrics=metrics, tables=tables)

    def _story(self, task: str, index: int) -> Story:
        return STORIES[task](Random(f"{self.seed}-{task}-{index}"))

    def _sample(
        self, model: LanguageModel, length: int, task: str, index: int, longest: int
    ) -> tuple[Story, str, list[int], str | None]:
        """Story, prompt, depths of the facts in percent, and the hash of the background."""
        story = self._story(task, index)
        if length == 0:
            return story, self._text(model, task, story), [], None
        background = self.words(longest)
        draw = Random(f"{self.seed}-{length}-{task}-{index}-places")
        first = draw.randrange(len(background.starts))
        # Positions are shares of the text, so facts keep their order while the text grows.
        shares = sorted(draw.random() for _ in story.facts)

        def spread(num_words: int) -> tuple[str, list[int]]:
            sentences = background.passage(first, num_words)
            places = [int(share * (len(sentences) + 1)) for share in shares]
            context = insert_sentences(sentences, places, story.facts)
            depths = [round(100 * place / max(1, len(sentences))) for place in places]
            return self._text(model, task, story, context), depths

        limit, most = length - self.max_new_tokens, len(background.words)
        units = most_that_fits(lambda n: self.count(model, spread(n)[0]), limit, least=0, most=most)
        assert units is not None, "batches() has measured every story"
        return story, *spread(units), background.sha256

    def _text(
        self, model: LanguageModel, task: str, story: Story, context: Sequence[str] | None = None
    ) -> str:
        """The prompt; by default the facts are the whole context."""
        question = question_text(task, " ".join(context or story.facts), story.question)
        return self.prompt(model, question)
