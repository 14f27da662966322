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
    asked = [tuple(model.encode_prompt(prompt, special=chat)) for prompt in prompts]
    scored: list[Continuation] = []
    if answers is not None:
        pairs = zip(prompts, answers, strict=True)
        scored = [_continuation(model, *pair, special=chat) for pair in pairs]
    for ids in asked:
        require_room(model, len(ids), max_new_tokens)

    def shared(batch: Sequence[int]) -> int:
        """Leading tokens that prompts and contexts share, less than the shortest has."""
        sequences = [*(asked[i] for i in batch), *(scored[i].context for i in batch if scored)]
        # In sorted order, the first and the last sequence differ the earliest.
        length = common_length(min(sequences), max(sequences))
        return min(length, min(map(len, sequences)) - 1)

    sizes, whole = [len(ids) + max_new_tokens for ids in asked], list(range(len(asked)))
    share_all = not model.rows_alone and shared(whole) >= _WORTH_READING
    grouped: Iterable[list[int]] = [whole]
    if not share_all:
        grouped = model.row_batches(sizes, model.read([]), all_logits=False)
    completions: dict[int, Completion] = {}
    for batch in grouped:
        before = None
        if share_all or (len(batch) == 1 and not model.rows_alone):
            before = model.read(asked[batch[0]][: shared(batch)])
        known = before.length if before else 0
        rest = [asked[i][known:] for i in batch]
        written = generate(model, rest, max_new_tokens=max_new_tokens, stop=stop, before=before)
        right = [Continuation(scored[i].context[known:], scored[i].target) for i in batch if scored]
        scores = score(model, right, before=before) if right else [None] * len(batch)
        for i, output, answer in zip(batch, written, scores, strict=True):
            mean = None if answer is None else answer.logprob / len(answer.token_logprobs)
            completions[i] = Completion(
                text=output.text,
                prompt_tokens=len(asked[i]),
                logprob_per_token=mean,
                prompt=prompts[i],
            )
    return [completions[i] for i in whole]


_WORTH_READING = 128
"""Shortest shared prefix, in tokens, that is read once; a shorter one is read per prompt."""


def _continuation(model: NetworkReader, prompt: str, answer: str, *, special: bool) -> Continuation:
    """A right answer, split from its prompt as lm-evaluation-harness does."""
    context, target = model.encode_pair(prompt, f" {answer}", special=special)
    room = model.max_length + 1 - len(context)
    return Continuation(tuple(context), tuple(target[:room]))
