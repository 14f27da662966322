"""Train, evaluate, study and report: everything that ``pip install 'diffattn[lab]'`` adds."""

from importlib.util import find_spec

from diffattn.errors import DiffAttnError

PACKAGES = ("accelerate", "scipy", "jinja2", "typer", "rich")
"""What the lab needs and the library does not. Only pages need plotly, so that a machine without it
trains."""

_missing = [name for name in PACKAGES if find_spec(name) is None]
if _missing:
    raise DiffAttnError(
        f"diffattn: the command line and the lab need {', '.join(_missing)}. "
        "Run: pip install 'diffattn[lab]'"
    )
