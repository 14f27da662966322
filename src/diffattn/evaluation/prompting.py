"""Prompts with or without the tokenizer's chat template, and how likely an answer is."""

from collections.abc import Sequence

from diffattn.errors import ConfigError
from diffattn.evaluation.language_model import LanguageModel
from diffattn.evaluation.scoring import Continuation, score


def require_chat_template(model: LanguageModel) -> None:
    """Raise unless the tokenizer has a chat template.

    Raises:
        ConfigError: It has none.
    """
    if not getattr(model.tokenizer, "chat_template", None):
        raise ConfigError(
            f"{model.label}: chat needs a tokenizer with a chat template, got none. "
            "Ask by completion: leave chat at false."
        )


def prompt_text(model: LanguageModel, question: str, answer_prefix: str, *, chat: bool) -> str:
    """A question and the beginning of its answer, as text to be completed.

    Spaces at the end are cut: they belong to the first token of the answer.

    Args:
        model: Whose template is used.
        question: What a user says.
        answer_prefix: What the answer begins with, with its leading space.
        chat: Put the question into the user's turn and the prefix into the assistant's. A BOS of
            the template is left out if the model adds its own.

    Raises:
        ConfigError: ``chat`` with a tokenizer without a template.
    """
    if not chat:
        return (question + answer_prefix).rstrip()
    require_chat_template(model)
    text = str(
        model.tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
        )
    )
    if model.bos is not None:
        text = text.removeprefix(model.tokenizer.bos_token)
    # A template may end in white space that opens the turn: it is cut only after a prefix.
    return text + answer_prefix.strip()


def answer_logprobs(
    model: LanguageModel, prompts: Sequence[str], answers: Sequence[str]
) -> list[float]:
    """Mean log-probability of the tokens of an answer after its prompt, in nats.

    Args:
        model: The model.
        prompts: Text without spaces at the end.
        answers: One per prompt, without a leading space. Of an answer too long for the model the
            tokens that fit count.

    Returns:
        One number per prompt: the closer to 0 the likelier.
    """
    pairs = [
        model.encode_pair(prompt, f" {answer}")
        for prompt, answer in zip(prompts, answers, strict=True)
    ]
    asked = [
        Continuation(tuple(context), tuple(target[: model.max_length + 1 - len(context)]))
        for context, target in pairs
    ]
    return [one.logprob / len(one.token_logprobs) for one in score(model, asked)]
