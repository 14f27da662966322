"""Complete prompts, with or without the tokenizer's chat template, and score right answers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from diffattn.errors import ConfigError
from diffattn.lab.inference.decoding import generate, require_room
from diffattn.lab.inference.network_reader import ItemError, NetworkReader
from diffattn.lab.inference.scoring import Continuation, score
from diffattn.lab.inference.shared_prefixes import common_length


def require_no_special(model: NetworkReader, text: str) -> None:
    """Raise ``ItemError`` if a text that goes into a chat template spells out a special token.

    A prompt with a template is encoded with its special tokens, so a text could end its turn.
    """
    added = model.tokenizer.added_tokens_decoder.values()
    spelled = [token.content for token in added if token.special and token.content in text]
    if spelled:
        raise ItemError(f"chat: a text must spell out no special token, got {spelled[0]!r}.")


def prompt_text(model: NetworkReader, question: str, answer_prefix: str, *, chat: bool) -> str:
    """The text of a prompt: a question and the beginning of its answer.

    Spaces at the end are cut, as they belong to the first token of the answer. With ``chat`` the
    question is the user's turn, and the prefix begins the assistant's turn; neither may spell out
    a special token. The template's BOS is left out if the model adds BOS itself.
    """
    if not chat:
        return (question + answer_prefix).rstrip()
    if not getattr(model.tokenizer, "chat_template", None):
        raise ConfigError(
            f"{model.label}: chat needs a tokenizer with a chat template, got none. "
            "Ask by completion: leave chat at false."
        )
    require_no_special(model, question + answer_prefix)
    turns = [{"role": "user", "content": question}]
    text: str = model.tokenizer.apply_chat_template(
        turns, tokenize=False, add_generation_prompt=True
    )
    if model.bos is not None:
        text = text.removeprefix(model.tokenizer.bos_token)
    # A template may end in white space that opens the turn: it is cut only after a prefix.
    return text + answer_prefix.strip()


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """A continuation of a prompt, and the mean log-probability of the right answer's tokens in
    nats (``None`` if not asked for)."""

    text: str
    prompt_tokens: int
    logprob_per_token: float | None
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
    """Complete prompts greedily and score right answers, with few forward passes.

    A prefix that all prompts share is read once, as is a prompt so long that it runs alone. Shorter
    prompts run in batches, once to complete them and once to score their answers.

    Args:
        prompts: Texts without spaces at the end.
        answers: One right answer per prompt, without a leading space; ``None``: no scores. An
            answer too long for the model is cut to the tokens that fit.
        chat: Whether the prompts come from a chat template, with special tokens spelled out.
    """
    pairs = zip(prompts, [None] * len(prompts) if answers is None else answers, strict=True)
    asked = [_Asked.encode(model, *pair, special=chat) for pair in pairs]
    for item in asked:
        require_room(model, len(item.prompt), max_new_tokens)
    sizes = [len(item.prompt) + max_new_tokens for item in asked]
    share_all = not model.rows_alone and _shared_by_all(asked) >= _WORTH_READING
    grouped: Iterable[list[int]] = [list(range(len(asked)))]
    if not share_all:
        grouped = model.row_batches(sizes, model.read([]), all_logits=False)
    completions: dict[int, Completion] = {}
    for batch in grouped:
        some, before = [asked[i] for i in batch], None
        if share_all or (len(batch) == 1 and not model.rows_alone):
            before = model.read(some[0].prompt[: _shared_by_all(some)])
        known = before.length if before else 0
        rest = [item.prompt[known:] for item in some]
        written = generate(model, rest, max_new_tokens=max_new_tokens, stop=stop, before=before)
        right = [
            Continuation(item.scored.context[known:], item.scored.target)
            for item in some
            if item.scored is not None  # all items or none
        ]
        scores = score(model, right, before=before) if right else [None] * len(some)
        for i, output, answer in zip(batch, written, scores, strict=True):
            mean = None if answer is None else answer.logprob / len(answer.token_logprobs)
            completions[i] = Completion(
                text=output.text,
                prompt_tokens=len(asked[i].prompt),
                logprob_per_token=mean,
                prompt=prompts[i],
            )
    return [completions[i] for i in range(len(asked))]


_WORTH_READING = 128
"""Shortest shared prefix, in tokens, that is read once; a shorter one is read per prompt."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """One prompt as tokens, and its answer, split from it as lm-evaluation-harness does."""

    prompt: tuple[int, ...]
    scored: Continuation | None

    @classmethod
    def encode(
        cls, model: NetworkReader, prompt: str, answer: str | None, *, special: bool
    ) -> "_Asked":
        ids = tuple(model.encode_prompt(prompt, special=special))
        if answer is None:
            return cls(ids, None)
        context, target = model.encode_pair(prompt, f" {answer}", special=special)
        room = model.max_length + 1 - len(context)
        return cls(ids, Continuation(tuple(context), tuple(target[:room])))


def _shared_by_all(asked: Sequence[_Asked]) -> int:
    """Leading tokens that all prompts and contexts of answers share, less than the shortest has."""
    sequences = [item.prompt for item in asked]
    sequences += [item.scored.context for item in asked if item.scored is not None]
    # In sorted order, the first and the last sequence differ the earliest.
    shared = common_length(min(sequences), max(sequences))
    return min(shared, min(map(len, sequences)) - 1)
