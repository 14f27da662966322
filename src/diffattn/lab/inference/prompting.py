"""Prompts with or without the tokenizer's chat template, and how likely an answer is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from diffattn.errors import ConfigError
from diffattn.lab.inference.decoding import Generation, generate, require_room
from diffattn.lab.inference.network_reader import ItemError, NetworkReader, Prefix
from diffattn.lab.inference.scoring import Continuation, score
from diffattn.lab.inference.shared_prefixes import common_length


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
    if not getattr(model.tokenizer, "chat_template", None):
        raise ConfigError(
            f"{model.label}: chat needs a tokenizer with a chat template, got none. "
            "Ask by completion: leave chat at false."
        )
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

    What all prompts begin with is read once for both. A prompt so long that it runs alone is
    read once as well; shorter ones run side by side, once to be completed and once to be scored.

    Args:
        prompts: Text without spaces at the end.
        answers: One per prompt, without a leading space; ``None``: no scores. Of an answer too
            long for the model the tokens that fit count.
        stop: Strings that end a completion.
        chat: The prompts are a chat template's: their special tokens count as such.

    Raises:
        ItemError: A prompt does not fit the model with ``max_new_tokens`` more.
    """
    pairs = zip(prompts, [None] * len(prompts) if answers is None else answers, strict=True)
    asked = [_Asked.encode(model, *pair, special=chat) for pair in pairs]
    for item in asked:
        require_room(model, len(item.prompt), max_new_tokens)
    write = partial(generate, model, max_new_tokens=max_new_tokens, stop=stop)
    sequences = [ids for item in asked for ids in item.sequences()]
    common = 0 if model.rows_alone else _shared_by_all(sequences)
    if common >= _WORTH_READING:
        return _complete(model, asked, write, model.read(asked[0].prompt[:common]))
    nothing = model.read([])
    sizes = [len(item.prompt) + max_new_tokens for item in asked]
    completions: dict[int, Completion] = {}
    for batch in model.row_batches(sizes, nothing, all_logits=False):
        before: Prefix | None = None
        if len(batch) == 1 and not model.rows_alone:
            common = _shared_by_all(asked[batch[0]].sequences())
            before = model.read(asked[batch[0]].prompt[:common])
        done = _complete(model, [asked[i] for i in batch], write, before)
        completions.update(zip(batch, done, strict=True))
    return [completions[i] for i in range(len(asked))]


_WORTH_READING = 128
"""Tokens: a shorter beginning is read with each prompt."""


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

    def sequences(self) -> list[tuple[int, ...]]:
        """Tokens to read: the prompt, and the context of the answer."""
        return [self.prompt] if self.scored is None else [self.prompt, self.scored.context]


def _complete(
    model: NetworkReader,
    asked: Sequence[_Asked],
    write: Callable[..., list[Generation]],
    before: Prefix | None,
) -> list[Completion]:
    """Go on from ``before``, with which all prompts begin."""
    known = before.length if before else 0
    written = write([item.prompt[known:] for item in asked], before=before)
    wanted = [item.scored for item in asked if item.scored is not None]  # of all, or of none
    rest = [Continuation(answer.context[known:], answer.target) for answer in wanted]
    scores = score(model, rest, before=before) if rest else [None] * len(asked)
    return [
        Completion(
            text=output.text,
            prompt_tokens=len(item.prompt),
            logprob_per_token=None if right is None else right.logprob / len(right.token_logprobs),
            prompt=item.text,
        )
        for item, output, right in zip(asked, written, scores, strict=True)
    ]


def _shared_by_all(sequences: Sequence[tuple[int, ...]]) -> int:
    """Leading tokens that all sequences share, at least one token short of the shortest."""
    # In order, the outer two differ the soonest.
    shared = common_length(min(sequences), max(sequences))
    return min(shared, min(map(len, sequences)) - 1)
