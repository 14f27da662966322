"""Every wrong call of the command line that the trial makes: options and settings × values."""

import dataclasses
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from types import NoneType

from diffattn.lab.evaluation.catalog import PROTOCOLS
from diffattn.lab.evaluation.protocol import protocol_class


@dataclass(frozen=True, slots=True)
class Call:
    """A call that must fail. ``{files}`` stands for the folder of :func:`files`."""

    arguments: tuple[str, ...]
    names: str = ""
    """What the message must name."""
    status: int = 2
    """1 where it fails while it runs or for what a file holds."""
    environment: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        shown = " ".join(a if len(a) < 60 else f"{a[:50]}({len(a)})" for a in self.arguments)
        return shown.encode(errors="backslashreplace").decode()


NO_NUMBER = (
    "", " ", "x", "\u00fc", "\u0661", '"1"', "[]", "[1]", "{}", '{"a": 1}', "true", "1,5", "0x10",
    "\udcff", "[" * 5_000,
)  # fmt: skip
NOT_FINITE = ("nan", "NaN", "inf", "-Infinity", "1e400")
NOT_WHOLE = ("1.5", "1e3", "-0.5", "1e-320")
TOO_BIG = (str(2**63), str(10**30), "9" * 5_000)
HUGE = (str(10**12), *TOO_BIG)
NO_FLOAT32 = ("1e308", "1e-320", "-1e308")
NO_TEXT_LIST = ("1", "true", "{}", "x", "[1]", "[null]", "[[]]", '"a"')

SMALL = {
    "data.source": "{files}/corpus.txt",
    "data.vocab_size": "300",
    "data.validation_fraction": "0.2",
    "model.hidden_size": "16",
    "model.head_dim": "4",
    "train.seq_len": "32",
    "train.batch_tokens": "64",
    "train.evaluation_tokens": "64",
    "train.num_steps": "2",
    "train.warmup_steps": "1",
    "train.evaluate_every": "2",
}
COUNT = (*NO_NUMBER, "null", *NOT_FINITE, *NOT_WHOLE, "-1", *TOO_BIG)
SIZE = (*COUNT, "0", str(10**12))
OPTIONAL = tuple(value for value in COUNT if value != "null")
REAL = (*NO_NUMBER, "null", *NOT_FINITE, *NO_FLOAT32, "-1", str(10**400))
TEXT = ("\udcff", "a\0b")
SWITCH = ("", "x", "1", "0", "[]", "1e38", "yes", "True", "\u00fc", "null")
ID = (*OPTIONAL, str(10**12), "512")
THETAS = ("0", "-1", '"x"', "null", "1e38", "1e-320", "[1]", "true", "NaN", "1e400", "9" * 400)
SCALINGS = (
    '"rope_type": "linear", "factor": 0',
    '"rope_type": "linear", "factor": "2"',
    '"rope_type": "dynamic", "factor": []',
    '"rope_type": "yarn", "factor": 4.0, "beta_fast": "x"',
    '"rope_type": "longrope", "short_factor": [1], "long_factor": [1]',
    '"rope_type": "llama3", "factor": 8.0',
    '"x": 1',
)
RUN: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("train.num_steps", "model.num_hidden_layers", "model.hidden_size"), SIZE),
    "train.batch_tokens": (*SIZE, "33", str(32 * 10**12)),
    "train.seq_len": (*SIZE, "1", "33", "1e38"),
    **dict.fromkeys(
        ("train.micro_batch_sequences", "model.num_kv_heads"), (*OPTIONAL, "0", "3", str(10**12))
    ),
    "train.learning_rate": (*REAL, "0", "1e38", "1e31"),
    "train.final_learning_rate": (*REAL, "1e38", "1"),
    "train.warmup_steps": (*COUNT, "2", str(10**12)),
    **dict.fromkeys(("train.beta_1", "train.beta_2"), (*REAL, "1", "1e38", "2")),
    "train.weight_decay": (*REAL, "1e38", "1e31"),
    "train.max_grad_norm": REAL,
    "train.precision": ("", "x", "null", "1", "[]", "float16", "\u00fc", "{}", "true"),
    **dict.fromkeys(("train.log_every", "train.evaluate_every"), (*COUNT, "0")),
    "train.evaluation_tokens": (*COUNT, "0", "1"),
    **dict.fromkeys(("train.seed", "train.data_seed"), (*COUNT, str(2**32), str(10**12))),
    "data.source": ("", " ", "/no/such", "null", *TEXT, "hub:", "{files}/folder", "x" * 5_000),
    "data.text_field": ("null", *TEXT),
    "data.tokenizer": ("/no/such", "{files}/folder", "{files}/corpus.txt", *TEXT, "x" * 5_000),
    "data.vocab_size": (*SIZE, "1", "256", str(2**31), str(2**32)),
    "data.validation_fraction": (*REAL, "0", "1", "1e38"),
    "model.attention_type": ("", "dif", "null", "1", "[]", "{}", "true", "\u00fc", "\udcff"),
    "model.vocab_size": (*SIZE, "1", "299", str(2**31)),
    **dict.fromkeys(
        ("model.intermediate_size", "model.shared_rank"), (*OPTIONAL, "0", str(10**12))
    ),
    "model.num_heads": (*SIZE, "3.0"),
    "model.head_dim": (*OPTIONAL, "0", "1", "3", str(10**12)),
    "model.head_norm": SWITCH[:-1],
    **{f"model.{name}": SWITCH for name in ("head_norm_affine", "qkv_bias", "qk_norm", "use_cache",
                                            "tie_word_embeddings")},
    **dict.fromkeys(("model.head_norm_eps", "model.rms_norm_eps"), (*REAL, "0", "1e38")),
    "model.lambda_init": (*REAL[:6], "1", "0.5", "[0.1]", *NOT_FINITE, *NO_FLOAT32),  # softmax
    "model.lambda_bias": (*SWITCH, "true"),
    "model.rope_parameters": (
        *("x", "1", "[]", "true", '"default"', "[1]", "\u00fc"),
        *(f'{{"rope_theta": {value}}}' for value in THETAS),
        *(f'{{"rope_type": {value}}}' for value in ("1", '"nope"', "[]", '""', '"yarn"')),
        *(f'{{"rope_theta": 10, {scaling}}}' for scaling in SCALINGS),
        '{"partial_rotary_factor": 0.5}',
        '{"rope_type": "default", "rope_theta": ' + "[" * 2_000 + "]" * 2_000 + "}",
    ),
    "model.max_position_embeddings": (*COUNT, "0", "31"),
    "model.initializer_range": (*REAL, "1e38", "1e12"),
    "model.attention_backend": ("", "x", "null", "1", "[]", "\u00fc"),
    **dict.fromkeys(("model.pad_token_id", "model.bos_token_id"), (*ID, "300")),
    "model.eos_token_id": (*(v for v in ID if v not in ("[]", "[1]")), "300", "[300]", "[-1]"),
}  # fmt: skip
DIFF = {
    "model.lambda_init": (
        *(v for v in REAL if v not in ("null", "-1")), "1e38", "[0.1]", "[0.1, 0.2, 0.3]",
        '["a", "b"]', "[NaN, 1]", "[null, 1]", "[1e308, 1]", "[[0.1], [0.2]]", "[true, false]",
    ),
}  # fmt: skip


def calls() -> list[Call]:
    """Every wrong call, in a fixed order, no two alike."""
    return list(dict.fromkeys([*calls_besides_evaluate(), *_evaluate()]))


def calls_besides_evaluate() -> list[Call]:
    """Those that load no protocol."""
    parts = (_usage, _train, _reproduce, _pack, _generate, _bench, _report, _list)
    return [call for part in parts for call in part()]


def changed(settings: dict[str, str]) -> list[str]:
    """Options ``--set``."""
    return [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]


TRAIN = ("train", "smoke", "--out", "out", *changed(SMALL))


def _usage() -> list[Call]:
    wrong: list[tuple[str, ...]] = [
        ("",), ("nope",), ("\udcff",), ("trian",), ("x" * 5_000,), ("--nope",), ("-x",),
        ("train", "smoke"), ("train", "--out", "out"), ("train", "smoke", "--out"),
        ("train", "smoke", "more", "--out", "out"), ("train", "smoke", "--ouy", "x"),
        ("train", "smoke", "--out", "out", "--resume=yes"), ("pack", "--out", "out"),
        ("evaluate", "needle"), ("evaluate", "--model", "m"), ("list", "--nope"),
        ("check", "--jsn"), ("reproduce", "a", "b"), ("list", "recipes", "x"),
    ]  # fmt: skip
    return [Call(arguments) for arguments in wrong]


def each(values: Iterable[str], *template: str, names: str = "", status: int = 2) -> list[Call]:
    """One call for every value, which takes the place of ``@``."""
    return [
        Call(tuple(part.replace("@", value) for part in template), names, status)
        for value in values
    ]


def _train() -> list[Call]:
    wrong = []
    # What names the setting may be its own key or what it has to fit.
    for keys, more in ((RUN, ()), (DIFF, ("--set", "model.attention_type=diff"))):
        for number, (key, values) in enumerate(keys.items()):
            names = "" if key in ("data.source", "data.tokenizer") else key.partition(".")[2]
            # A third of what is no number, in turn: all keys read it alike.
            kept = [v for v in values if v not in NO_NUMBER or NO_NUMBER.index(v) % 3 == number % 3]
            wrong += each(kept, *TRAIN, *more, "--set", f"{key}=@", names=names)
    settings = ("", "=", "x", "train", "train.=1", ".=", "=1", "model=1", "train.x=1", "\udcff=1")
    settings += ("train.seed", "data.sourc=x", "model.hidden_siz=3", "x" * 5_000)
    wrong += each(settings, *TRAIN, "--set", "@", names="--set")
    recipes = ("", " ", "smok", "\u00fc", "\udcff", "SMOKE", "None", "x" * 5_000)
    wrong += each(recipes, "train", "@", "--out", "out", names="recipe")
    kinds = ("", "dif", "DIFF", "\u00fc", "None", "\udcff")
    wrong += each(kinds, *TRAIN, "--attention", "@", names="attention_type")
    small = ("train", "smoke", "--out", "@", *changed(SMALL))
    wrong += each(("{files}/corpus.txt", "a\0b"), *small)
    wrong += each(("{files}/folder", "{files}/model"), *small, status=1)
    data = ("", "/no/such", "{files}/corpus.txt", "{files}/folder", "{files}/model")
    wrong += each(data, *TRAIN, "--data", "@", status=1)
    wrong.append(Call((*TRAIN, "--data", "{files}/data", "--set", "data.vocab_size=400"), "--data"))
    wrong.append(Call((*TRAIN, "--resume"), "--resume"))
    return wrong + [Call((*TRAIN, *changed(sizes)), "memory") for sizes in BEYOND_MEMORY]


BEYOND_MEMORY: tuple[dict[str, str], ...] = (
    {"model.hidden_size": "1048576", "model.intermediate_size": "64"},
    {"model.num_hidden_layers": "100000000"},
    {"model.num_heads": "1048576", "model.num_kv_heads": "1048576", "model.head_dim": "4096"},
    {"model.vocab_size": "1000000000"},
    {"model.intermediate_size": "1000000000"},
    {"model.attention_type": "shared_diff", "model.shared_rank": "1000000000"},
    {"train.seq_len": "1073741824", "train.batch_tokens": "1073741824"},
    {"train.batch_tokens": "34359738368"},
    {"train.num_steps": "100000000000", "train.batch_tokens": "3200"},
)
"""Sizes that are each possible, and no memory holds together."""


def _reproduce() -> list[Call]:
    wrong = []
    small = ("reproduce", "text", "--scale", "smoke", "--out", "out", *changed(SMALL))
    for key, values in RUN.items():
        names = "" if key in ("data.source", "data.tokenizer") else key.partition(".")[2]
        wrong += each(values[::7], *small, "--set", f"{key}=@", names=names)
    for option, values in {
        "--scale": ("", "x", "SMOKE", "\u00fc", "\udcff", "1"),
        "--seeds": ("", " ", "x", "-1", "1,1", "0,", ",", "1.5", "nan", "[1]", str(2**32), "\u00fc",
                    "9" * 5_000, "1e3", "true"),
        "--match": ("", "param", "\u00fc", "1", "None"),
        "--workers": ("", "0", "-1", "x", "1.5", "nan", "inf", "1e3", "\u00fc"),
    }.items():  # fmt: skip
        scale = () if option == "--scale" else ("--scale", "smoke")
        for study in ("text", "recall"):
            call = ("reproduce", study, "--out", "out", *scale, f"{option}=@")
            wrong += each(values, *call, names=option[2:].rstrip("s"))
    wrong += each(("", "txt", "\udcff", "TEXT"), "reproduce", "@", "--out", "out", names="study")
    wrong.append(Call(("reproduce", "recall", "--set", "train.seed=1", "--out", "out"), "--set"))
    small = ("reproduce", "text", "--scale", "smoke", *changed(SMALL), "--out", "@")
    wrong += each(("{files}/corpus.txt", "a\0b"), *small)
    return wrong + each(("{files}/folder",), *small, status=1)


def _pack() -> list[Call]:
    lines = ("nested", "deep", "list", "number", "big", "half", "null", "surrogate", "blank")
    files = ("empty", "empty.txt", "binary.txt", *(f"{name}.jsonl" for name in lines))
    sources = ("", " ", "/no/such", "hub:", "hub", "\u00fc", "\udcff", "a\0b", "x" * 5_000)
    sources += tuple(f"{{files}}/{name}" for name in files)
    wrong = each(sources, "pack", "@", "--out", "out")
    long = ("pack", "{files}/corpus.txt", "--out", "out", "--tokenizer", "@")
    wrong += each(("x" * 5_000,), *long, names="File name too long")
    for option, values in {
        "--vocab-size": (*NO_NUMBER, "nan", "inf", "1.5", "1e3", "-1", "0", "1", "256", *HUGE,
                         str(2**31), str(2**32), str(2**64), "null"),
        "--validation-fraction": (*NO_NUMBER, "nan", "inf", "-inf", "-1", "0", "1", "1e38",
                                  "1e308", "1e-320", "2", "null"),
        "--tokenizer": ("", " ", "/no/such", "{files}/folder", "{files}/corpus.txt", "a\0b",
                        "\udcff", "\u00fc"),
    }.items():  # fmt: skip
        call = ("pack", "{files}/corpus.txt", "--out", "out", f"{option}=@")
        wrong += each(values, *call, names=option[2:7])
    fields = ("", "texts", "nested", "nested.text", "list", "number", "none", "\udcff", "a\0b")
    call = ("pack", "{files}/rows.jsonl", "--out", "out", "--text-field=@")
    wrong += each(fields, *call, names="field")
    call = ("pack", "{files}/corpus.txt", "--out", "@")
    wrong += each(("{files}/folder", "{files}/model"), *call, status=1)
    return wrong + each(("{files}/corpus.txt", "a\0b"), *call)


def _evaluate() -> list[Call]:
    wrong = []
    long = ("--out", "out", "--quick", "--max-length", "4096")
    model = ("--model", "{files}/model")
    for protocol in PROTOCOLS:
        kind = protocol_class(protocol)
        hints = typing.get_type_hints(kind)
        for field in dataclasses.fields(kind):
            for value in _wrong_values(field.name, hints[field.name]):
                setting = f"{protocol}.{field.name}={value}"
                # A path is named itself, and what a dictionary holds by its own key.
                other = value.startswith(("/", "{files}", '{"x"'))
                names = "" if other else field.name.rstrip("s")
                wrong.append(Call(("evaluate", protocol, *model, *long, "--set", setting), names))
    settings = ("", "=", "needle", "needle.=1", ".=1", "needle.x=1", "ruler.samples=1")
    settings += ("needle.samples", "\udcff=1", "samples=1", "x" * 5_000)
    wrong += each(settings, "evaluate", "needle", *model, *long, "--set", "@", names="--set")
    protocols = ("", " ", "neddle", "\u00fc", "\udcff", "NEEDLE", "None", "x" * 5_000)
    wrong += each(protocols, "evaluate", "@", *model, *long, names="protocol")
    base = ("evaluate", "word_perplexity", "--quick")
    labels = ("\udcff", "a\0b", "a/b", ".a", "..", "l" * 300)
    models = ("", "=", "a=", "=a", ".", "..", "/", "a\0b", "x" * 5_000)
    models += tuple(f"{label}={{files}}/model" for label in labels)
    wrong += each(models, *base, "--out", "out", "--model", "@")
    models = ("/no/such", "{files}/folder", "{files}/corpus.txt", "\u00fc=/no/such", "nope",
              "{files}/data")  # fmt: skip
    wrong += each(models, *base, "--out", "out", "--model", "@", status=1)
    wrong.append(Call((*base, *model, *model, "--out", "out"), "--model"))
    for option, values in {
        "--max-length": ("", "x", "1", "0", "-1", "1.5", "nan", "null", *HUGE),
        "--device": ("", "x", "cuda", "cpu:x", "meta", "CPU", "\u00fc", "mps", "cuda:99", "\udcff"),
        "--dtype": ("", "x", "float64", "int8", "FLOAT32", "\u00fc", "1", "float8_e4m3fn"),
    }.items():
        call = ("evaluate", "word_perplexity", *model, *long, f"{option}=@")
        wrong += each(values, *call, names=option[2:5])
    wrong += each(("{files}/folder",), *base, *model, "--out", "@", status=1)
    return wrong + each(("{files}/corpus.txt", "a\0b"), *base, *model, "--out", "@")


PATHS = {"data", "texts", "text", "haystack", "squad", "hotpotqa", "word_list", "key_list"}
"""Parameters whose messages name the path itself."""


def _wrong_values(field: str, wanted: object) -> tuple[str, ...]:
    """Values that a parameter of a protocol must not have, by its type."""
    kinds = typing.get_args(wanted) if NoneType in typing.get_args(wanted) else (wanted,)
    (kind,) = (kind for kind in kinds if kind is not NoneType)
    null = () if NoneType in kinds else ("null",)
    if kind is bool:
        return SWITCH
    if kind is int:
        return (*NO_NUMBER[::3], *null, *NOT_FINITE[::2], *NOT_WHOLE[::2], "-1", *HUGE)
    if kind is float:
        return (*NO_NUMBER[::3], *null, *NOT_FINITE, *NO_FLOAT32, "-1", "1", "0")
    if kind is str:
        if field in PATHS:
            empty = () if field == "haystack" else ("{files}/folder",)
            paths = ("/no/such", "{files}/binary.txt", "{files}/empty", *empty)
            return ("", *null, *TEXT, *paths)
        if field == "text_field":
            return (*null, *TEXT)
        return ("", "x", "\u00fc", "\udcff", "1", "[]", *null)  # a choice of names
    if typing.get_origin(kind) is dict:
        return ("", "x", "1", "[]", '{"x": 1}', '{"limit": -1}', '{"limit": 1e400}', "null",
                '{"limit": 1000000000000}', "{" * 3_000)  # fmt: skip
    inner = typing.get_args(kind)[0]
    if inner is str:
        names = () if field == "stop" else ("[]",)  # nothing stops it
        return (*NO_TEXT_LIST, *null, *names)
    values = ("1", "x", "true", "{}", "[]", '["a"]', "[null]", "[-1]", "[NaN]", "[1e400]",
              f"[{10**30}]", "[" * 3_000)  # fmt: skip
    return (*values, "[[-1, 1]]", "[[1]]", "[[1, 2, 3]]") if inner not in (int, float) else values


def _generate() -> list[Call]:
    wrong = []
    for option, values in {
        "--max-new-tokens": ("", "x", "0", "-1", "1.5", "nan", "null", "1e3", "\u00fc", *HUGE),
        "--temperature": ("", "x", "-1", "nan", "inf", "-inf", "null", "1e-320", "1e308", "1e38",
                          "1e-30", "-1e-320", "\u00fc", "[1]", str(10**400)),
        "--seed": ("", "x", "-1", "1.5", "nan", str(2**32), *HUGE, "null", "\u00fc"),
        "--device": ("cdua", "cuda:99", ""), "--dtype": ("float31", "int8", ""),
    }.items():  # fmt: skip
        call = ("generate", "{files}/model", "--prompt", "the cat", f"{option}=@")
        names = "tokens" if option == "--max-new-tokens" else option[2:]
        wrong += each(values, *call, names=names)
    prompts = ("", "\udcff", "x\udcff", "the cat " * 5_000)
    wrong += each(prompts, "generate", "{files}/model", "--prompt", "@", names="prompt")
    models = ("", "/no/such", "{files}/folder", "{files}/corpus.txt", "{files}/data",
              "nope", "\u00fc")  # fmt: skip
    wrong += each(models, "generate", "@", "--prompt", "a", status=1)
    return wrong + each(("a\0b", "\udcff", "x" * 5_000), "generate", "@", "--prompt", "a")


def _bench() -> list[Call]:
    wrong = []
    for suite in ("ops", "decode", "models"):
        base = ("bench", suite, "--scale", "quick", "--device", "cpu", "--out", "out")
        base = (*base, "--rounds", "1", "--seconds", "0")
        if suite != "models":
            base = (*base, "--only", "composed")
        for option, values in {
            "--scale": ("", "x", "FULL"),
            "--device": ("", "x", "cuda", "mps", "CPU"),
            "--dtype": ("", "x", "float64", "float16", "float32,", ",", "\u00fc"),
            "--length": ("", "x", "0", "-1", "1.5", "nan", "1,x", "[1]", ",", *HUGE, "1000000000"),
            "--only": ("", "x", ",", "composed,x", "\u00fc", "\udcff"),
            "--attention": ("", "x", "v3", "V1"),
            "--rounds": ("", "x", "0", "-1", "1.5", "nan"),
            "--seconds": ("", "x", "-1", "nan", "inf", "-inf", str(10**400)),
        }.items():
            names = "contender" if option == "--only" else option[2:]
            wrong += [Call((*base, f"{option}={value}"), names) for value in values]
    wrong += [Call(("bench", suite, "--out", "out")) for suite in ("", "op", "\u00fc", "\udcff")]
    return wrong


def _report() -> list[Call]:
    inside = ("folder", "corpus.txt", "model", "data", "empty")
    studies = ("", "/no/such", *(f"{{files}}/{name}" for name in inside))
    wrong = [Call(("report", "a", "b"), status=1), *each(studies, "report", "@", status=1)]
    wrong += each(studies, "report", "@", "--markdown", status=1)
    wrong += each(("a\0b", "\udcff", "x" * 5_000), "report", "@")
    call = ("report", "{files}/folder")
    wrong += each(("", "/no/such", "{files}/corpus.txt"), *call, "--bench", "@", status=1)
    return [*wrong, Call((*call, "--markdown", "--out", "x"), "--markdown")]


def _list() -> list[Call]:
    kinds = ("", "x", "recipe", "RECIPES", "\u00fc", "\udcff", "x" * 5_000, "None")
    return [Call(("list", kind, *more), "kind") for kind in kinds for more in ((), ("--json",))]
