"""Wrong calls of ``diffattn judge``: endpoints, settings, keys."""

from trials.wrong_calls import Call, each

SECRET = "sk-proj-Zx81vQm-Jr4"
LOCAL = "http://127.0.0.1:9"
ENDPOINTS = [
    *("", "host", "host:8000", "127.0.0.1:9/v1", "//127.0.0.1:9/v1", "http:", "http:///v1"),
    *("ftp://127.0.0.1:9/v1", "file:///etc/passwd", "http://127.0.0.1:0/v1", "http://[::1"),
    *("http://127.0.0.1:65536/v1", "http://127.0.0.1:1e3/v1", LOCAL + "/v1#{secret}"),
    *("http://me:{secret}@127.0.0.1:9/v1", "htp://127.0.0.1:9/v1?key={secret}"),
]
JUDGE_SETTINGS = {
    "temperature": "nan inf -1 101 1e999 hot true [] {}",
    "max_tokens": "0 -1 1.5 nan true x [] 2147483648",
    "workers": "0 -1 null 1001 1.5 nan true x [] {}",
    "timeout_seconds": "0 -1 nan inf 86401 null true x [] {}",
    "max_attempts": "0 -1 1001 1.5 null true nan x []",
    "first_wait_seconds": "-1 nan inf 86401 null true x []",
    "longest_wait_seconds": "-1 nan inf 9223372037 null true x []",
    "give_up_after": "0 -1 1.5 1000000001 null nan true x []",
    "document": "half null true 1 [] {} Whole",
    "name": '1 1.5 true [] {} ["a"] ""',
    "key_variable": 'NO_SUCH_VARIABLE {secret} 1 true [] {} EMPTY_KEY BLANK_KEY LATIN_KEY ""',
    "model": "other", "endpoint": "http://a/v1", "worker": "2", "": "1", "api_key": "{secret}",
}  # fmt: skip
KEYS = {"EMPTY_KEY": "", "BLANK_KEY": " \n\t", "LATIN_KEY": f"{SECRET}é"}
JUDGE = ["--model", "m", "--endpoint", "http://127.0.0.1:9/v1"]


def judge_calls() -> list[Call]:
    """Refused before anything is written or sent."""
    judge = ("judge", "{files}/judged")
    environment = tuple(KEYS.items())
    wrong = [Call((*judge, "--model", "m", "--endpoint", url)) for url in ENDPOINTS]
    for name, values in JUDGE_SETTINGS.items():
        wrong += [
            Call((*judge, *JUDGE, "--set", f"{name}={value}"), environment=environment)
            for value in values.split(" ")
        ]
    files = ("{files}/judged", "{files}/null", "{files}/pipe")
    for option in ("--replies", "--requests"):
        wrong += each(files, *judge, "--model", "m", option, "@")
    for option, values in {
        "--set": ("workers", "", "="), "--dtype": ("int3",), "--device": ("toaster", "", "cpu:x"),
    }.items():  # fmt: skip
        wrong += each(values, *judge, "--model", "{files}/judged", option, "@")
    rest = ((), ("--set",), ("--nothing",), JUDGE[2:], (*JUDGE, "--replies", "x"))
    return wrong + [Call((*judge, *words)) for words in rest]
