"""Each command as a new user calls it: what it prints, where, and what it leaves behind."""

import json
import subprocess
import sys

import pytest
import torch

from diffattn.files.io import read_json
from diffattn.lab.catalog.recipes.catalog import RECIPES
from diffattn.lab.studies.whole import STUDIES_OF
from diffattn.lab.training.callbacks import MetricsCallback
from diffattn.models.config.attention_types import ATTENTION
from diffattn.models.loading import load_model
from diffattn.ops.inputs import backends


def test_train_from_packed_data_and_generate(cli, small, corpus, tmp_path):
    data, run = tmp_path / "data", tmp_path / "run"
    pack = ("pack", corpus, "--out", data, "--vocab-size", 300, "--validation-fraction", 0.2)
    facts = json.loads(cli(*pack, "--json").out)
    assert facts["train_tokens"] > facts["validation_tokens"] > 0
    again = cli(*pack)
    assert again.out.startswith(f"{facts['train_tokens']:,} training tokens, ")
    assert again.err == f"checking {corpus}, which {data} holds packed\n"

    others = [part for part in small if part != "--set" and not part.startswith("data.")]
    options = [part for setting in others for part in ("--set", setting)]
    train = ("train", "smoke", "--data", data, *options)
    shared = (*train, "--attention", "shared_diff", "--out", run)
    trained = cli(*shared, "--json")
    assert trained.code == 0, trained
    results = json.loads(trained.out)
    assert results == read_json(run / "results.json")
    assert not (run / "data").exists()
    lines = trained.err.splitlines()
    assert lines[0] == "model.vocab_size is the data's 300, the recipe's is 512"
    assert lines[1] == "1/6 steps (17%); smoke"
    assert lines[-1].startswith("6/6 steps (100%); smoke loss ")
    assert len(lines) == 3

    changes = ("--set", "engine.watch_every=5", "--set", "engine.save_every=2")
    resumed = cli(*shared, "--resume", *changes)
    assert resumed.out == (
        f"smoke: validation loss {results['validation_loss']:.4f} nats per token, "
        f"{results['validation_bits_per_byte']:.4f} bits per byte.\n"
        f"Model: {run / 'model'}\n"
    )
    assert "is finished: checking" in resumed.err.splitlines()[0]
    assert len(resumed.err.splitlines()) == 2
    longer = ("--out", tmp_path / "other", "--set", "train.num_steps=600")
    shown = cli(*train, *longer, "--dry-run")
    times = 600 * 64 / facts["train_tokens"]
    assert shown.err.splitlines() == [
        lines[0], f"{facts['train_tokens']:,} training tokens are read {times:,.1f} times"
    ]  # fmt: skip
    assert json.loads(shown.out)["model"]["vocab_size"] == 300


def test_too_little_text_leaves_no_data_in_the_way(cli, fails, small, tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    (text / "a.txt").write_text("the cat sat on the mat\n")
    source = ("--set", f"data.source={text}")
    run = ("train", "smoke", "--out", tmp_path / "run", *small, *source)
    study = ("reproduce", "text", "--scale", "smoke", "--out", tmp_path / "study", *small, *source)
    for command in (run, study):
        assert "the text is too short: " in fails(*command, code=2)
    assert [path.name for path in tmp_path.iterdir()] == ["text"]
    for name in ("a.txt", "b.txt"):
        (text / name).write_text("a dog and a cat are not alike\n" * 60)
    assert cli(*run).code == 0
    kept = sorted(path.name for path in (tmp_path / "run" / "data").iterdir())
    longer = fails(*run, "--set", "train.seq_len=1024", "--set", "train.batch_tokens=1024", code=2)
    assert "training tokens, 1,024 needed" in longer
    assert sorted(path.name for path in (tmp_path / "run" / "data").iterdir()) == kept


def test_an_interrupted_training_goes_on(cli, small, trained, tmp_path):
    out = tmp_path / "run"
    command = ("train", "smoke", "--attention", "diff", "--out", out, *small)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("diffattn.lab.training.prepare.pack", interrupt)
        stopped = cli(*command)
    assert stopped.code == 130
    again = " ".join(map(str, ("diffattn", *command)))
    line = f"diffattn: stopped; what was done is kept. Go on with: {again}"
    assert stopped.err.splitlines()[-1] == line
    real = MetricsCallback.on_evaluate

    def interrupt_after_two_steps(self, args, state, *rest, **more):
        return interrupt() if state.global_step else real(self, args, state, *rest, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MetricsCallback, "on_evaluate", interrupt_after_two_steps)
        stopped = cli(*command, "--resume")
    assert stopped.code == 130
    line = stopped.err.splitlines()[-1]
    assert line.startswith("diffattn: stopped after 2 of 6 steps; what was done is kept")
    assert cli(*command).code == 0
    for name in ("metrics.jsonl", "results.json"):
        assert (out / name).read_bytes() == (trained / name).read_bytes()


def interrupt(*args, **kwargs):
    raise KeyboardInterrupt


@pytest.mark.scheduled  # a fresh process takes seconds
def test_the_tokenizer_of_a_model_of_ours_is_taken_without_a_warning(trained, corpus, tmp_path):
    """In a fresh process, where nothing has told transformers of our configuration."""
    words = ("pack", corpus, "--out", tmp_path / "data", "--tokenizer", trained / "model")
    command = [sys.executable, "-m", "diffattn", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert all(line.startswith("packing") for line in done.stderr.splitlines()), done.stderr


def test_generate_prints_the_text_alone(cli, trained):
    few = ("--prompt", "the cat", "--max-new-tokens", 5)
    called = cli("generate", trained, *few)
    assert called.code == 0
    assert called.err.endswith(" parameters babbles: it knows words, not facts.\n")
    assert called.out.startswith("the cat")
    assert called.out.endswith("\n")
    assert cli("generate", trained / "model", *few) == called
    many = ("--prompt", "the", "--max-new-tokens", 20, "--temperature", 2.0)
    sampled = [cli("generate", trained, *many, "--seed", seed) for seed in (1, 1, 2)]
    assert sampled[0] == sampled[1]
    assert sampled[0].out != sampled[2].out
    command = ("generate", trained, "--max-new-tokens", 9)
    greedy = cli(*command)
    for alone in (("--top-k", 1), ("--top-p", 0)):  # of the likeliest token
        assert cli(*command, "--temperature", 2.0, *alone) == greedy
    assert greedy.code == 0
    assert cli(*command, "--repetition-penalty", 99) != greedy


def test_generate_takes_a_device_and_a_dtype(cli, fails, trained, monkeypatch):
    asked = []

    def load(model, **options):
        asked.append(options["dtype"])
        return load_model(model, **options)

    monkeypatch.setattr("diffattn.lab.inference.streaming.load_model", load)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    command = ("generate", trained, "--prompt", "the cat", "--max-new-tokens", 1)
    slow = cli(*command, "--device", "cpu", "--dtype", "bfloat16")
    assert (slow.code, "no bfloat16 instructions" in slow.err) == (0, True)
    assert cli(*command).code == 0
    assert asked == [torch.bfloat16, None]
    assert "device: must be one that works here" in fails(*command, "--device", "cdua", code=2)
    assert "Did you mean 'float16'?" in fails(*command, "--dtype", "flaot16", code=2)


@pytest.mark.parametrize(
    ("command", "resolved"),
    [
        ("reproduce text --scale study --seeds 4,5", {"seeds": [4, 5]}),
        ("reproduce recall --scale study --seeds 4,5", {"seeds": [4, 5]}),
        ("train laptop --attention diff_v2 --set train.num_steps=60",
         {"model": {"attention_type": "diff_v2"}, "train": {"num_steps": 60}}),
        ("train smoke --set engine.parallel=fsdp --set engine.save_every=null",
         {"engine": {"parallel": "fsdp"}}),
    ],
)  # fmt: skip
def test_dry_run_prints_the_configuration_and_creates_nothing(
    command, resolved, cli, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    called = cli(*command.split(), "--out", tmp_path / "out", "--dry-run")
    assert (called.code, called.err) == (0, "")
    for key, value in resolved.items():
        printed = json.loads(called.out)[key]
        assert printed == value or printed.items() >= value.items()
    assert list(tmp_path.iterdir()) == []


def test_the_whole_on_one_gpu_grows_what_trains_on_text(cli, tmp_path):
    command = ("reproduce", "--scale", "workstation", "--out", tmp_path / "all", "--dry-run")
    called = cli(*command, "--set", "data.source=texts/")
    studies = json.loads(called.out)
    assert list(studies) == list(STUDIES_OF["workstation"])
    larger = {name for name, of in studies.items() if of.get("scale") == "workstation"}
    assert larger == {"text", "ablations", "rank"}
    for name in larger:
        assert studies[name]["config"]["model"]["hidden_size"] == 1_024
        assert studies[name]["config"]["data"]["source"] == "texts/"
        assert len(studies[name]["seeds"]) == (3 if name == "text" else 5)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_scale_of_a_gpu_needs_one(fails, tmp_path):
    line = fails("reproduce", "--scale", "workstation", "--out", tmp_path / "all", code=2)
    assert "scale 'workstation' needs a CUDA device, got none" in line


@pytest.mark.parametrize("kind", ["recipes", "presets", "types", "backends"])
def test_lists_show_every_name_whole(kind, cli, monkeypatch):
    expected = {
        "recipes": list(RECIPES),
        "presets": ["830m", "1.4b", "2.8b", "3b", "gpt2-small", "6.8b", "13.1b", "34b", "70b"],
        "types": list(ATTENTION),
        "backends": list(backends.names("diff_attention")),
    }[kind]
    rows = json.loads(cli("list", kind, "--json").out)
    assert [next(iter(row.values())) for row in rows] == expected
    for width in ("60", "120"):
        monkeypatch.setenv("COLUMNS", width)
        shown = cli("list", kind)
        assert (shown.code, shown.err, "…" in shown.out) == (0, "", False)
        lines = shown.out.splitlines()
        assert set(expected) <= {line.split()[0] for line in lines if line.split()}
        assert max(map(len, lines)) <= int(width)
