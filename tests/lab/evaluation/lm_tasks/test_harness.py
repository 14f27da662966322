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
from language_models import byte_pairs, of_tokenizer, write_after
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
            ("", f"{ours.tokenizer.bos_token}the river"),  # it begins itself
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


@pytest.mark.parametrize(
    "settings",
    [
        {"until": ["e"], "max_gen_toks": 12, "do_sample": False},
        {"until": "e", "max_new_tokens": 7},
        {"until": [], "max_tokens": 5, "max_completion_tokens": 9, "temperature": 0},
        {"max_completion_tokens": "4", "do_sample": False, "temperature": 0.7, "num_beams": 1},
    ],
    ids=lambda settings: ",".join(settings),
)
def test_generation_equals_that_of_the_harness(pair, text, settings):
    ours, theirs = pair
    contexts = ["the old king", "a question\nAnswer:", text[:700]]
    asked = requests("generate_until", [(context, settings) for context in contexts])
    expected = theirs.generate_until(asked, disable_tqdm=True)
    assert harness_model(ours).generate_until(asked) == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0.7}, "generation must be greedy"),
        ({"do_sample": True, "temperature": 0.0}, "generation must be greedy"),
        ({"max_tokens": 10_000}, "max_gen_toks must be below"),
        ({"max_new_token": 5}, "got max_new_token = 5"),
        ({"num_beams": 4}, "got num_beams = 4"),
        ({"max_length": 40}, "among do_sample, max_gen_toks, .*got max_length = 40"),
        ({"max_tokens": "many"}, "must be numbers"),
    ],
)
def test_settings_that_ask_for_something_else_are_refused(models, settings, message):
    adapter = harness_model(models["softmax"])
    with pytest.raises(ConfigError, match=message):
        adapter.generate_until(requests("generate_until", [("the", settings)]))


@pytest.mark.parametrize(
    "stop", [["<|im_end|>"], ["<|im_end|>\n"], ["road", "<|im_end|>"], ["</s>"]], ids=repr
)
def test_special_stop_strings_end_a_text_as_in_the_harness(stop):
    from lm_eval.models.huggingface import HFLM

    ours = of_tokenizer(byte_pairs("the long road " * 20, special=("<|im_end|>", "<|sep|>")))
    ids = ours.encode("the<|sep|> long<|im_end|>\nroad", special=True)
    write_after(ours, len(ours.encode("so")), ids)
    theirs = HFLM(pretrained=ours.network, tokenizer=ours.tokenizer, batch_size=1)
    asked = requests("generate_until", [("so", {"until": stop, "max_gen_toks": len(ids)})])
    (text,) = harness_model(ours).generate_until(asked)
    (wrapped,) = theirs.generate_until(asked, disable_tqdm=True)
    assert text == wrapped.removesuffix("\n")  # which leaves the rest of such a stop string
    assert text == ("the long\nroad" if stop == ["</s>"] else "the long")


def test_conversations_go_through_the_tokenizers_template(pair):
    ours, theirs = pair
    adapter = harness_model(ours)
    history = [{"role": role, "content": f"of {role}"} for role in ("system", "user", "assistant")]
    with pytest.raises(ConfigError, match="chat needs a tokenizer with a chat template"):
        adapter.apply_chat_template(history)
    plain = "{% for m in messages %}({{ m.role }}){{ m.content }}{% endfor %}"
    for template in (
        plain + "{% if add_generation_prompt %}(assistant){% endif %}",
        "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + plain,
    ):
        ours.tokenizer.chat_template = template
        try:
            for opens in (True, False):
                text = adapter.apply_chat_template(history, add_generation_prompt=opens)
                assert text == theirs.apply_chat_template(history, add_generation_prompt=opens)
            assert adapter.chat_template(True) == theirs.chat_template(True) == template
        finally:
            ours.tokenizer.chat_template = None


def test_continuations_that_cannot_be_scored(build):
    model = build("softmax", max_length=16)
    with pytest.raises(ItemError, match="must have a token or more"):
        harness.continuation(model, "the king", "")
    with pytest.raises(ItemError, match="must fit the model's 16 tokens"):
        harness.continuation(model, "the king", " special" * 40)


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("num_fewshot", [0, 2])
def test_the_harness_runs_our_model(models, num_fewshot, chat, tmp_path, monkeypatch):
    """simple_evaluate with our adapter and with its own wrapper: equal results."""
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    model = models["shared_diff"]
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n\n{% endfor %}"
    if chat:
        monkeypatch.setattr(model.tokenizer, "chat_template", template)
    ours = LanguageModel(model.network, model.tokenizer)
    theirs = HFLM(pretrained=model.network, tokenizer=model.tokenizer, batch_size=4)
    results = []
    for one in (harness_model(ours), theirs):
        task = harness_task("openbookqa", local(tmp_path / "data", "openbookqa", 12, 6))
        found = simple_evaluate(
            model=one,
            tasks=[task],
            num_fewshot=num_fewshot,
            apply_chat_template=chat,
            bootstrap_iters=0,
            task_manager=TaskManager(include_defaults=False),
        )
        results.append(found["results"]["openbookqa"])
        (context, _) = found["samples"]["openbookqa"][0]["arguments"][0]
        assert context.count("\n\n") == num_fewshot * (1 + chat) + chat
    assert results[0]["acc,none"] == results[1]["acc,none"]
    assert results[0]["acc_norm,none"] == results[1]["acc_norm,none"]
