"""Prompts with or without the tokenizer's chat template, and how likely an answer is."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from diffattn.errors import ConfigError
from diffattn.lab.inference.decoding import generate, require_room
from diffattn.lab.inference.network_reader import ItemError, NetworkReader
from diffattn.lab.inference.scoring import Continuation, Score, score
from diffattn.lab.inference.shared_prefixes import shared_prefixes


def require_chat_template(model: NetworkReader) -> None:
    """Raise unless the tokenizer has a chat template."""
    if not getattr(model.tokenizer, "chat_template", None):
        raise ConfigError(
            f"{model.label}: chat needs a tokenizer with a chat template, got none. "
            "Ask by completion: leave chat at false."
        )


def require_no_special(model: NetworkReader, text: str) -> None:
    """Raise where a text could leave its place in a chat template by spelling out a special token.

    The template's own special tokens are spelled out around it, so these count as such, too.
    """
    added = model.tokenizer.added_tokens_decoder.values()
    spelled = [token.content for token in added if token.special and token.content in text]
    if spelled:
        raise ItemError(f"chat: a text must spell out no special token, got {spelled[0]!r}.")


def prompt_text(model: NetworkReader, question: str, answer_prefix: str, *, chat: bool) -> str:
    """A question and the beginning of its answer, as text to be completed.

    Spaces at the end are cut: they belong to the first token of the answer. With ``chat`` the
    question is the user's turn and the prefix opens the assistant's; a BOS of the template is left
    out if the model adds its own.

    Raises:
        ConfigError: ``chat`` with a tokenizer without a template.
        ItemError: ``chat`` and the question spells out a special token.
    """
    if not chat:
        return (question + answer_prefix).rstrip()
    require_chat_template(model)
    require_no_special(model, question + answer_prefix)
    text = str(
        model.tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
        )
    )
    if model.bos is not None:
        text = text.removeprefix(model.tokenizer.bos_token)
    # A template may end in white space that opens the turn: it is cut only after a prefix.
    return text + answer_prefix.strip()


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """A continuation of a prompt, and how likely a right answer was."""

    text: str
    prompt_tokens: int
    logprob_per_token: float | None
    """Of the right answer after the prompt, in nats; ``None`` if it was not asked for."""
    prompt: str = ""


def complete(
    model: NetworkReader,
    prompts: Sequence[str],
    answers: Sequence[str] | None,
    *,
    max_new_tokens: int,
    stop: Sequence[str] = (),
    chat: bool = False,
) -> list[Completion]:
    """Complete prompts greedily and score right answers, with as little reading as can be.

    What prompts begin with is read once for both, and so is a long prompt. Short ones run side by
    side, once to be completed and once to be scored.

    Args:
        model: Model that completes the prompts.
        prompts: Text without spaces at the end.
        answers: One per prompt, without a leading space; ``None``: no scores. Of an answer too
            long for the model the tokens that fit count.
        max_new_tokens: Per prompt.
        stop: Strings that end a completion.
        chat: The prompts are a chat template's: their special tokens count as such.

    Raises:
        ItemError: A prompt does not fit the model with ``max_new_tokens`` more.
    """
    pairs = zip(prompts, [None] * len(prompts) if answers is None else answers, strict=True)
    asked = [_Asked.encode(model, *pair, special=chat) for pair in pairs]
    for item in asked:
        require_room(model, len(item.prompt), max_new_tokens)
    # Prompts, then the contexts of answers, which begin like their prompts.
    scored = {i: item.scored for i, item in enumerate(asked) if item.scored is not None}
    sequences = [*(item.prompt for item in asked), *(x.context for x in scored.values())]
    limits = [0 if model.rows_alone else len(ids) - 1 for ids in sequences]
    write = partial(generate, model, max_new_tokens=max_new_tokens, stop=stop)
    texts: dict[int, str] = {}
    scores: dict[int, Score] = {}
    for prefix, members in shared_prefixes(model, sequences, limits):
        written = [i for i in members if i < len(asked)]
        done = write([sequences[i][prefix.length :] for i in written], before=prefix)
        texts |= {i: output.text for i, output in zip(written, done, strict=True)}
        owners = [list(scored)[i - len(asked)] for i in members if i >= len(asked)]
        wanted = [
            Continuation(scored[i].context[prefix.length :], scored[i].target) for i in owners
        ]
        scores |= zip(owners, score(model, wanted, before=prefix), strict=True)
    return [
        Completion(
            text=texts[i],
            prompt_tokens=len(item.prompt),
            logprob_per_token=_per_token(scores[i]) if i in scores else None,
            prompt=item.text,
        )
        for i, item in enumerate(asked)
    ]


def _per_token(right: Score) -> float:
    return right.logprob / len(right.token_logprobs)


@dataclass(frozen=True, slots=True)
class _Asked:
    """One prompt in tokens, and its answer as the harness would cut it off."""

    prompt: tuple[int, ...]
    scored: Continuation | None
    text: str

    @classmethod
    def encode(
        cls, model: NetworkReader, prompt: str, answer: str | None, *, special: bool
    ) -> "_Asked":
        """Encode a prompt and its answer."""
        ids = tuple(model.encode_prompt(prompt, special=special))
        if answer is None:
            return cls(ids, None, prompt)
        context, target = model.encode_pair(prompt, f" {answer}", special=special)
        room = model.max_length + 1 - len(context)
        return cls(ids, Continuation(tuple(context), tuple(target[:room])), prompt)
