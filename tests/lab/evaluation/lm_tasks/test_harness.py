"""The harness's prompts over local documents, and our models inside the harness."""

import pytest
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from diffattn.errors import ConfigError
from diffattn.lab.evaluation.lm_tasks import harness
from diffattn.lab.evaluation.lm_tasks.documents import read_task
from diffattn.lab.evaluation.lm_tasks.harness import harness_model, harness_questions, harness_task
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
    copied = PreTrainedTokenizerFast(
        tokenizer_object=type(tokenizer.backend_tokenizer).from_str(
            tokenizer.backend_tokenizer.to_str()
        ),
        bos_token=tokenizer.bos_token,
        eos_token=tokenizer.eos_token,
        pad_token=tokenizer.pad_token,
        clean_up_tokenization_spaces=False,
    )
    bos = (tokenizer.bos_token, tokenizer.bos_token_id)
    copied.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{bos[0]} $A", special_tokens=[bos]
    )
    return copied


@pytest.fixture(params=[False, True], ids=["no BOS", "BOS"])
def pair(request, models, tokenizer):
    """A model of ours in the harness, and the harness's own wrapper of the same network.

    The tokenizer knows BOS both times, and puts it there by itself or not.
    """
    from lm_eval.models.huggingface import HFLM

    network = models["diff"].network
    own = with_bos(tokenizer) if request.param else tokenizer
    ours = LanguageModel(network, own, max_length=64)
    theirs = HFLM(pretrained=network, tokenizer=own, max_length=64, batch_size=3)
    return ours, theirs


def requests(kind, arguments):
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, args, i) for i, args in enumerate(arguments)]


def test_loglikelihoods_equal_those_of_the_harness(pair, text):
    ours, theirs = pair
    asked = requests(
        "loglikelihood",
        [
            ("the old king", " and the river"),
            ("the old king ", "and the river"),  # the space moves
            ("", "the river"),
            ("the old ki", "ng and the river"),  # the border lies within a token
            (text[:900], " of the river"),  # the context is cut
            ("a question\nAnswer:", " no"),
            (f"{ours.tokenizer.bos_token}the old king", " and"),  # no second BOS
        ],
    )
    found = harness_model(ours).loglikelihood(asked)
    for (logprob, greedy), (their_logprob, their_greedy) in zip(
        found, theirs.loglikelihood(asked, disable_tqdm=True), strict=True
    ):
        assert logprob == pytest.approx(their_logprob, rel=1e-5)
        assert greedy == their_greedy


def test_rolling_loglikelihoods_equal_those_of_the_harness(pair, text):
    ours, theirs = pair
    if ours.as_its_tokenizer_begins().bos is not None:
        pytest.skip("the harness would count the BOS it adds as a token of the text")
    asked = requests("loglikelihood_rolling", [(text[:40],), (text[:1200],)])
    expected = theirs.loglikelihood_rolling(asked, disable_tqdm=True)
    assert harness_model(ours).loglikelihood_rolling(asked) == pytest.approx(expected, rel=1e-5)


def test_generation_equals_that_of_the_harness(pair, text):
    ours, theirs = pair
    settings = {"until": ["e"], "max_gen_toks": 12, "do_sample": False}
    contexts = ["the old king", "a question\nAnswer:", text[:700]]
    asked = requests("generate_until", [(context, settings) for context in contexts])
    expected = theirs.generate_until(asked, disable_tqdm=True)
    assert harness_model(ours).generate_until(asked) == expected


def test_sampling_and_endless_generation_are_refused(models):
    adapter = harness_model(models["softmax"])
    with pytest.raises(ConfigError, match="generation must be greedy"):
        adapter.generate_until(requests("generate_until", [("the", {"temperature": 0.7})]))
    with pytest.raises(ConfigError, match="max_gen_toks must be below"):
        adapter.generate_until(requests("generate_until", [("the", {"max_gen_toks": 10_000})]))


def test_continuations_that_cannot_be_scored(build):
    model = build("softmax", max_length=16)
    with pytest.raises(ItemError, match="must have a token or more"):
        harness.continuation(model, "the king", "")
    with pytest.raises(ItemError, match="must fit the model's 16 tokens"):
        harness.continuation(model, "the king", " special" * 40)


@pytest.mark.parametrize("num_fewshot", [0, 2])
def test_the_harness_runs_our_model(models, num_fewshot, tmp_path):
    """simple_evaluate with our adapter and with its own wrapper: equal results."""
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    model = models["shared_diff"]
    ours = LanguageModel(model.network, model.tokenizer)
    theirs = HFLM(pretrained=model.network, tokenizer=model.tokenizer, batch_size=4)
    results = []
    for one in (harness_model(ours), theirs):
        task = harness_task("openbookqa", local(tmp_path / "data", "openbookqa", 12, 6))
        found = simple_evaluate(
            model=one,
            tasks=[task],
            num_fewshot=num_fewshot,
            bootstrap_iters=0,
            task_manager=TaskManager(include_defaults=False),
        )
        results.append(found["results"]["openbookqa"])
        (context, _) = found["samples"]["openbookqa"][0]["arguments"][0]
        assert context.count("\n\n") == num_fewshot
    assert results[0]["acc,none"] == results[1]["acc,none"]
    assert results[0]["acc_norm,none"] == results[1]["acc_norm,none"]
