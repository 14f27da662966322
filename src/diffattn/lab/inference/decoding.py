"""Greedy decoding, with shared prefixes read once; complete prompts and score right answers."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from diffattn.errors import ConfigError
from diffattn.lab.inference.network_reader import ItemError, NetworkReader, Prefix, batches
from diffattn.lab.inference.scoring import Continuation, score
from diffattn.lab.inference.shared_prefixes import (
    Rows,
    can_branch,
    common_length,
    grow_branches,
    share_prefixes,
)


@dataclass(frozen=True, slots=True)
class Generation:
    """A continuation by a model: its tokens, and their text, cut before the first stop string."""

    ids: tuple[int, ...]
    text: str
    finished: str
    """Reason of the end: ``"stop"`` (a stop string), ``"eos"`` (an end token) or ``"length"``."""


@torch.no_grad()
def generate(
    model: NetworkReader,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    stop: Sequence[str] = (),
    before: Prefix | None = None,
) -> list[Generation]:
    """Greedy decoding of prompts of any lengths after ``before``; shared prefixes are read once.

    A continuation ends at any of :func:`diffattn.models.loading.end_tokens`, at a ``stop`` string,
    or after ``max_new_tokens``. Ties go to the smallest token id.
    """
    if max_new_tokens < 1:
        raise ItemError(f"generate: max_new_tokens must be 1 or more, got {max_new_tokens}.")
    known = before.length if before else 0
    for prompt in prompts:
        require_room(model, known + len(prompt) if prompt else 0, max_new_tokens)
    generations: dict[int, Generation] = {}
    limits = [0] * len(prompts) if model.rows_alone else None
    for length, members in share_prefixes(prompts, limits):
        prefix = model.read(prompts[members[0]][:length], before)
        rows = [list(prompts[i][length:]) for i in members]
        room = [len(row) + max_new_tokens for row in rows]
        copied = len(rows) * prefix.length
        branched = copied >= model.limits.copied_tokens and can_branch(model, prefix)
        if branched:
            # The mask has as many rows as the tree has tokens.
            grouped = _batches_by_tokens(room, min(prefix.length, 2_048))
        else:
            grouped = model.row_batches(room, prefix, all_logits=False)
            if not prefix.keeps_all:  # padding would take up places in a window
                by_length = (itertools.groupby(batch, room.__getitem__) for batch in grouped)
                grouped = (list(group) for groups in by_length for _, group in groups)
        for batch in grouped:
            some = [rows[j] for j in batch]
            grow = grow_branches if branched and len(batch) > 1 else _padded_rows
            done = _decode(model, grow(model, prefix, some), len(batch), max_new_tokens, stop)
            generations.update(zip((members[j] for j in batch), done, strict=True))
    return [generations[i] for i in range(len(prompts))]


def require_room(model: NetworkReader, prompt_tokens: int, max_new_tokens: int) -> None:
    """Raise ``ItemError`` if a prompt is empty or leaves no room for its continuation."""
    if not prompt_tokens:
        raise ItemError("generate: a prompt must hold a token or more, got none.")
    model.require_length(prompt_tokens + max_new_tokens, "generate: prompt and continuation")


def _decode(
    model: NetworkReader, rows: Rows, count: int, max_new_tokens: int, stop: Sequence[str]
) -> list[Generation]:
    written: list[list[int]] = [[] for _ in range(count)]
    done: dict[int, Generation] = {}
    last = dict(enumerate(next(rows)))
    for step in range(max_new_tokens):
        tokens: dict[int, int] = {}  # of the unfinished rows
        for i, logits in last.items():
            choice = int(logits.argmax())
            if choice in model.end_tokens:
                done[i] = Generation(tuple(written[i]), model.decode(written[i]), "eos")
                continue
            written[i].append(choice)
            stopped = _stopped_text(model, written[i], stop) if stop else None
            if stopped is not None:
                done[i] = Generation(tuple(written[i]), stopped, "stop")
            else:
                tokens[i] = choice
        if not tokens or step + 1 == max_new_tokens:
            break
        last = dict(zip(tokens, rows.send(tokens), strict=True))
    return [
        done.get(i) or Generation(tuple(ids), model.decode(ids), "length")
        for i, ids in enumerate(written)
    ]


def _stopped_text(model: NetworkReader, ids: Sequence[int], stop: Sequence[str]) -> str | None:
    """Text before the first stop string, which may spell special tokens; ``None`` without one."""
    text = model.decode(ids)
    if (end := first_stop(text, stop)) is not None:
        return text[:end]
    if not model.special_tokens.intersection(ids):
        return None
    spelled = [model.tokenizer.decode(ids[:count]) for count in range(len(ids) + 1)]
    if (end := first_stop(spelled[-1], stop)) is None:
        return None
    whole = max(count for count, text in enumerate(spelled) if len(text) <= end)
    rest = "" if ids[whole] in model.special_tokens else spelled[-1][len(spelled[whole]) : end]
    return model.decode(ids[:whole]) + rest


def _batches_by_tokens(room: Sequence[int], most: int) -> Iterator[list[int]]:
    # The keys of all rows of a batch are in one mask.
    order = sorted(range(len(room)), key=room.__getitem__)
    return batches(order, lambda batch: sum(room[i] for i in batch) <= most)


def first_stop(text: str, stop: Sequence[str]) -> int | None:
    """Where the first stop string begins; ``None`` without one."""
    return min((at for s in stop if s and (at := text.find(s)) >= 0), default=None)


def _padded_rows(model: NetworkReader, prefix: Prefix, rows: list[list[int]]) -> Rows:
    """Decode padded rows, each with its own copy of the prefix. Rows that ended get token 0."""
    if len(rows) == 1 and len(rows[0]) > 1:
        prefix, rows = model.read(rows[0][:-1], prefix), [rows[0][-1:]]  # reads in chunks
    lengths = torch.tensor([len(row) for row in rows], device=model.device)
    ends, end_of_row = (lengths - 1).unique(return_inverse=True)
    logits, cache = model.forward_rows(prefix, rows, keep=ends)
    longest = int(lengths.max())
    mask = torch.ones(len(rows), prefix.length + longest, dtype=torch.long, device=model.device)
    mask[:, prefix.length :] = torch.arange(longest, device=model.device) < lengths[:, None]
    tokens = yield logits[torch.arange(len(rows)), end_of_row]
    for step in itertools.count():
        mask = torch.cat([mask, mask.new_ones(len(rows), 1)], dim=1)
        ids = [tokens.get(i, 0) for i in range(len(rows))]
        out = model.network(
            input_ids=torch.tensor(ids, device=model.device)[:, None],
            attention_mask=mask,
            position_ids=(prefix.length + lengths + step)[:, None],
            past_key_values=cache,
            use_cache=True,
        )
        last = out.logits[list(tokens), -1]
        model.require_finite(last)
        tokens = yield last.to(torch.promote_types(last.dtype, torch.float32))


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
    # A shorter shared prefix is read per prompt.
    share_all = not model.rows_alone and shared(whole) >= 128
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


def _continuation(model: NetworkReader, prompt: str, answer: str, *, special: bool) -> Continuation:
    """A right answer, split from its prompt as lm-evaluation-harness does."""
    context, target = model.encode_pair(prompt, f" {answer}", special=special)
    room = model.max_length + 1 - len(context)
    return Continuation(tuple(context), tuple(target[:room]))
