"""Wrong calls of ``diffattn judge``: endpoints, settings, keys, proxies."""

import itertools

from trials.wrong_calls import Call, each

SECRET = "sk-proj-Zx81vQm-Jr4"
LONG = "x" * 3000

LOCAL = "http://127.0.0.1:9"
ENDPOINTS = [
    *("", " ", "host", "host:8000", "127.0.0.1:9/v1", "//127.0.0.1:9/v1", "http:"),
    *("http:///v1", "http:127.0.0.1", "https://?q", "ftp://127.0.0.1:9/v1"),
    *("file:///etc/passwd", "data:text/plain,a", "unix:///run/a", "javascript:alert(1)"),
    *("1http://a/v1", "http://127.0.0.1:0/v1", "http://127.0.0.1:65536/v1"),
    *("http://127.0.0.1:-1/v1", "http://127.0.0.1:8٠/v1", "http://127.0.0.1:1e3/v1"),
    *(f"{LOCAL}:80/v1", f"{LOCAL}/v 1", f"{LOCAL}/v1\n", f"{LOCAL}/\tv1", f"\n{LOCAL}/v1"),
    *(f"{LOCAL}/v1\r\nX: y", "http://127.0.0.1\x7f/v1", f"{LOCAL}/\x1b[31m", f"{LOCAL}/é"),
    *(f"{LOCAL}/v1?q=é", f"{LOCAL}/\udcff", "http://[::1", "http://::1/v1", "http://[]/v1"),
    *("http://[v1.a]/v1", "http://[::1%25lo]:9/v1", "http://[g::1]/v1"),
    *("http://bücher.test/v1", "http://a..b/v1", "http://" + "a" * 64 + ".test/v1"),
    *("http://℀.test/v1", "http://a\u00adb/v1", "http://a\\b/v1", "http://a,b/v1"),
    *('http://"a"/v1', "http://me:{secret}@127.0.0.1:9/v1", "http://me:{secret}"),
    *("http://{secret}@127.0.0.1:9/v1", "http://@127.0.0.1:9/v1"),
    *(LOCAL + "/v1#{secret}", "htp://127.0.0.1:9/v1?key={secret}"),
    *("http://[::1?key={secret}", f"{LOCAL}/{LONG}", f"{LOCAL}/v1?{LONG}"),
]
JUDGE_SETTINGS = {
    "temperature": "nan inf -inf NaN Infinity -Infinity -1 -1e-9 1e-320 5e-324 1e-9 101 1e308 "
    "1e999 hot true [] {} [0.1] 10000000000000000000000000000000 0x1 1,5",
    "max_tokens": "0 -1 1.5 1e3 nan inf true x [] 2147483648 1000000000000000000 1e999 0.0",
    "workers": "0 -1 null 1001 10000000000 1.5 4.0 nan true x [] {}",
    "timeout_seconds": "0 -1 -0.0 nan inf -inf 1e308 1e999 86401 1e-320 1e-9 null true x [] {}",
    "max_attempts": "0 -1 1001 1000000000000000000 1.5 null true nan x []",
    "first_wait_seconds": "-1 -1e-320 nan inf 1e308 86401 null true x []",
    "longest_wait_seconds": "-1 nan inf 1e308 1e999 9223372037 null true x []",
    "give_up_after": "0 -1 1.5 1000000001 1000000000000000000 null nan true x []",
    "document": "half null true 1 [] {} Whole",
    "name": '1 1.5 true [] {} ["a"] "" "a\\u0000" "\\ud800" '
    + f"{LONG} {'x' * 151} {'é' * 76}",
    "key_variable": "NO_SUCH_VARIABLE {secret} 1 true [] {} EMPTY_KEY BLANK_KEY LINE_KEY TAB_KEY "
    'SPACE_KEY LATIN_KEY WIDE_KEY NUL_KEY BYTES_KEY LONG_KEY "" "A\\u0000B" "A\\nB" "\\ud800" A=B '
    + LONG,
    "model": "other", "endpoint": "http://a/v1", "worker": "2", "": "1", "api_key": "{secret}",
}  # fmt: skip
KEYS = {
    "EMPTY_KEY": "", "BLANK_KEY": " \n\t", "LINE_KEY": f"{SECRET}\nX: y", "TAB_KEY": f"{SECRET}\tx",
    "SPACE_KEY": f"{SECRET} x", "LATIN_KEY": f"{SECRET}é", "WIDE_KEY": f"{SECRET}\u2013",
    "NUL_KEY": f"{SECRET}\x01", "BYTES_KEY": f"{SECRET}\udcff", "LONG_KEY": SECRET * 1000,
}  # fmt: skip
PROXIES = [
    "socks5://127.0.0.1:9", "https://127.0.0.1:9", "ftp://127.0.0.1:9", "http://",
    "http://:9", "127.0.0.1:0", "127.0.0.1:abc", "127.0.0.1:70000", "http://me:{secret}@",
    "http://me:{secret}@127.0.0.1:x", "http://a b", "http://127.0.0.1:9\n",
    "http://é:9", "//",
    "http://[::1", "me:{secret}@127.0.0.1:99999", "?{secret}",
    "socks5h://me:{secret}@127.0.0.1:9",
]  # fmt: skip
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
    for proxy, scheme in itertools.product(PROXIES, ("http", "https")):
        endpoint = ("--model", "m", "--endpoint", f"{scheme}://127.0.0.1:9/v1")
        wrong.append(Call((*judge, *endpoint), environment=((f"{scheme}_proxy", proxy),)))
    models = ("", "\n", "a\tb", "\udcff", "\x1b[31m", "m" * 1001, "m" * 200, "a\u2028b")
    wrong += each(models, *judge, "--model", "@", *JUDGE[2:])
    files = ("{files}/judged", "{files}/null", "{files}/pipe")
    for option in ("--replies", "--requests"):
        wrong += each(files, *judge, "--model", "m", option, "@")
    for option, values in {
        "--set": ("workers", "", "="), "--dtype": ("int3",), "--device": ("toaster", "", "cpu:x"),
    }.items():  # fmt: skip
        wrong += each(values, *judge, "--model", "{files}/judged", option, "@")
    rest = ((), ("--set",), ("--nothing",), JUDGE[2:], (*JUDGE, "--replies", "x"))
    return wrong + [Call((*judge, *words)) for words in rest]
