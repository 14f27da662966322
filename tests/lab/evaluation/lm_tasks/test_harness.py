"""The harness's prompts over local documents, and its scores of our models."""

import copy

import pytest
from tokenizers.processors import TemplateProcessing

from diffattn.errors import ConfigError
from diffattn.lab.evaluation.lm_tasks.documents import read_task
from diffattn.lab.evaluation.lm_tasks.lm_tasks import continuation, harness_questions
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.inference.network_reader import ItemError
from lm_documents import write_task

pytest.importorskip("lm_eval", reason="lm-eval is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def local(folder, task, count=6, num_training=0):
    write_task(folder, task, count, num_training)
    return read_task(folder, task)


@pytest.mark.parametrize("task", ["arc_easy", "piqa", "winogrande"])
@pytest.mark.parametrize("num_training", [0, 9])
def test_examples_are_solved_documents_and_never_the_question(task, num_training, tmp_path):
    read = local(tmp_path / "data", task, 8, num_training)
    bare, _ = harness_questions(task, read)
    found, source = harness_questions(task, read, num_fewshot=3)
    assert source == ("training" if num_training else "evaluated")
    solved, drawn = {"".join(own.pairs[own.gold]) for own in bare}, set()
    for question, own in zip(found, bare, strict=True):
        for (context, _), (last, _) in zip(question.pairs, own.pairs, strict=True):
            examples = context.removesuffix(f"\n\n{last}").split("\n\n")
            assert len(examples) == 3
            assert len(solved & set(examples)) == (0 if num_training else 3)
            assert "".join(own.pairs[own.gold]) not in examples
            drawn.add(tuple(examples))
    assert len(drawn) > 1
    again, _ = harness_questions(task, read, num_fewshot=3, limit=5)
    assert again == found[:5]
    assert harness_questions(task, read, num_fewshot=3, seed=1)[0] != found


def test_too_few_documents_for_the_examples(tmp_path):
    with pytest.raises(ConfigError, match="5-shot needs 6 documents to draw from, got 4"):
        harness_questions("piqa", local(tmp_path / "data", "piqa", 4), num_fewshot=5)


def test_no_hub_means_one_clear_line():
    with pytest.raises(ConfigError, match="must be on the hub or in the hub's cache, got"):
        harness_questions("piqa")


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "lm_eval", None)
    monkeypatch.setitem(__import__("sys").modules, "lm_eval.tasks", None)
    with pytest.raises(ConfigError, match=r"pip install 'diffattn\[eval\]'"):
        harness_questions("piqa")


def with_bos(tokenizer):
    """The tokenizer, putting BOS first by its own settings, as Llama's does."""
    copied = copy.deepcopy(tokenizer)
    bos = (tokenizer.bos_token, tokenizer.bos_token_id)
    copied.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{bos[0]} $A", special_tokens=[bos]
    )
    return copied


@pytest.fixture(params=[False, True], ids=["no BOS", "BOS"])
def pair(request, models, tokenizer):
    """A model of ours, and the harness's own wrapper of the same network.

    The tokenizer knows BOS both times, and puts it there by itself or not.
    """
    from lm_eval.models.huggingface import HFLM

    network = models["diff"].network
    own = with_bos(tokenizer) if request.param else tokenizer
    ours = LanguageModel(network, own, max_length=64)
    theirs = HFLM(pretrained=network, tokenizer=own, max_length=64, batch_size=3)
    return ours, theirs


def test_loglikelihoods_equal_those_of_the_harness(pair, text):
    from lm_eval.api.instance import Instance

    ours, theirs = pair
    asked = [
        ("the old king", " and the river"),
        ("the old king ", "and the river"),  # the space moves
        ("", "the river"),
        ("", f"{ours.tokenizer.bos_token}the river"),  # it begins itself
        ("the old ki", "ng and the river"),  # the border lies within a token
        (text[:900], " of the river"),  # the context is cut
        ("a question\nAnswer:", " no"),
        (f"{ours.tokenizer.bos_token}the old king", " and"),  # no second BOS
    ]
    begun = ours.as_its_tokenizer_begins()
    scores = begun.score([continuation(begun, *pair)[0] for pair in asked])
    requests = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(asked)]
    expected = theirs.loglikelihood(requests, disable_tqdm=True)
    for score, (logprob, greedy) in zip(scores, expected, strict=True):
        assert score.logprob == pytest.approx(logprob, rel=1e-5)
        assert score.is_greedy == greedy


def test_continuations_that_cannot_be_scored(build):
    model = build("softmax", max_length=16)
    with pytest.raises(ItemError, match="must have a token or more"):
        continuation(model, "the king", "")
    with pytest.raises(ItemError, match="must fit the model's 16 tokens"):
        continuation(model, "the king", " special" * 40)
