"""Models that a test hands in instead of patching modules: with a script, or with a log."""

import copy
from dataclasses import replace

from transformers import DynamicCache

from diffattn.lab.inference.decoding import Completion, Generation
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.inference.network_reader import Prefix
from diffattn.lab.inference.scoring import Score


def with_limits(model, **limits):
    """The same model with other limits of a pass."""
    other = copy.copy(model)
    other.limits = replace(model.limits, **limits)
    return other


def alone(model):
    """The same model, which reads every row by itself: the definition, for comparison."""
    other = copy.copy(model)
    other.rows_alone = True
    return other


class _Stand(LanguageModel):
    """Stands in for a model of the same network, tokenizer and limits."""

    def __init__(self, model):
        super().__init__(
            model.network, model.tokenizer, label=model.label, path=model.path,
            max_length=model.max_length, add_bos=model.bos is not None, limits=model.limits,
        )  # fmt: skip


class ScriptedModel(_Stand):
    """Answers as the test says, without reading; what is not scripted must not be asked.

    Args:
        model: Gives the tokenizer, the limits and the facts.
        score, generate, complete: Called like the methods of a model.
    """

    def __init__(self, model, *, score=None, generate=None, complete=None):
        super().__init__(model)
        self._script = {"score": score, "generate": generate, "complete": complete}

    def read_prompts(self, prompts):
        """Unread, in the order of the prompts, so that a script can answer one after another."""
        cache = DynamicCache(config=self.network.config)
        return ((i, Prefix(len(prompt) - 1, cache)) for i, prompt in enumerate(prompts))

    def score(self, continuations, **options):
        return self._answer("score", continuations, **options)

    def generate(self, prompts, **options):
        return self._answer("generate", prompts, **options)

    def complete(self, prompts, answers, **options):
        return self._answer("complete", prompts, answers, **options)

    def _answer(self, name, *args, **options):
        script = self._script[name]
        assert script is not None, f"{name} was asked for and is not scripted"
        return script(*args, **options)


def completing(model, write):
    """A model that completes every prompt with ``write(prompt, answer, max_new_tokens)``."""

    def complete(prompts, answers, *, max_new_tokens, **_):
        return [
            Completion(
                text=write(prompt, answer, max_new_tokens),
                prompt_tokens=len(model.encode_prompt(prompt)),
                logprob_per_token=None if answers is None else -1.0,
            )
            for prompt, answer in zip(prompts, answers or [None] * len(prompts), strict=True)
        ]

    return ScriptedModel(model, complete=complete)


def generating(model, write):
    """A model that generates ``write()`` after every prompt, and finds no right answer likely."""
    return ScriptedModel(
        model,
        generate=lambda *_, **__: [Generation((), write(), "stop")],
        score=lambda *_, **__: [Score((-5.0,), False)],
    )


class LoggedModel(_Stand):
    """A real model that keeps a log of what its network reads.

    ``reads`` holds how many tokens every call of ``read`` was given; ``passes`` the length of the
    prefix and the rows of every call of ``forward_rows``.
    """

    def __init__(self, model):
        super().__init__(model)
        self.reads, self.passes = [], []

    def read(self, ids, before=None):
        self.reads.append(len(ids))
        return super().read(ids, before)

    def forward_rows(self, prefix, rows, keep=None):
        self.passes.append((prefix.length, [tuple(row) for row in rows]))
        return super().forward_rows(prefix, rows, keep)
