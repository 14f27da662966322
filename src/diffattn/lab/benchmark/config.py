"""The settings of a benchmark, one shape, and the names of contenders: what is timed together."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffattn.errors import ConfigError, check_known
from diffattn.lab.records.results import shape_text
from diffattn.ops.inputs import backends

if TYPE_CHECKING:
    import torch

T, TC, DIFF = "T", "TC", "DIFF"
"""Roles: PyTorch's softmax attention, softmax attention by a technique of ours, and DIFF."""
SDPA = "sdpa"
FLASH_4, FLASH_4_ONE, TWO_CUDNN = "flash_attn_4", "flash_attn_4_one_call", "two_calls_cudnn"
"""GPU only: T by FlashAttention 4 (package flash-attn-4), V2 by one call of it, maps by cuDNN."""
DIFFATTN, TRANSFORMERS = "diffattn", "transformers"
FOLDED = "shared_diff_folded"
"""Folding changes how a model trains, but not its logits, so it is timed in generation only."""
MODEL_CONTENDERS = {
    # name: role, technique, attention type, package of the model, attention implementation
    "softmax_sdpa": (T, "sdpa", "softmax", DIFFATTN, "sdpa"),
    "softmax": (TC, DIFFATTN, "softmax", DIFFATTN, "diffattn"),
    "diff": (DIFF, DIFFATTN, "diff", DIFFATTN, "diffattn"),
    "diff_v2": (DIFF, DIFFATTN, "diff_v2", DIFFATTN, "diffattn"),
    "shared_diff": (DIFF, DIFFATTN, "shared_diff", DIFFATTN, "diffattn"),
    "llama": (TC, TRANSFORMERS, "softmax", TRANSFORMERS, "sdpa"),
    "diffllama": (DIFF, TRANSFORMERS, "diff", TRANSFORMERS, "sdpa"),
    FOLDED: (DIFF, DIFFATTN, "shared_diff", DIFFATTN, "diffattn"),
}
PAGED_SOFTMAX = "softmax_triton"
"""TC of the suite ``paged``: softmax attention on pages, by the technique of ``triton``."""
DENSE = {"dense_decode": "decode", "dense_triton_decode": "triton_decode"}
"""Contenders of ``paged`` whose keys and values are not in pages, and their backends."""


def contender_names(suite: str) -> tuple[str, ...]:
    """Names that ``only`` may hold in a suite: models, or backends of the operators."""
    if suite in OF_MODELS:
        return tuple(x for x in MODEL_CONTENDERS if x != FOLDED or suite == "generation")
    if suite == "paged":
        return (SDPA, PAGED_SOFTMAX, *backends.names("paged_decode"), *DENSE)
    known = [*backends.names("diff_attention"), *backends.names("softmax_attention"), SDPA]
    known += [FLASH_4_ONE, TWO_CUDNN] if suite == "ops" else []
    return tuple(dict.fromkeys(known))


OF_MODELS = ("models", "generation")
SUITES = ("ops", "decode", "paged", *OF_MODELS)
HOST = "host"
"""The suite that measures the host's time for one call. It has no cases and no contenders."""
DEVICES = ("cpu", "cuda")
ATTENTIONS = ("v1", "v2")


def check_names(given: Mapping[str, Any]) -> None:
    """Check names and numbers of a :class:`BenchConfig`, whose device may be ``None``."""
    suite, scale = given["suite"], given["scale"]
    for name, least in (("rounds", 1), ("seconds", 0)):
        if not least <= given[name] < float("inf"):  # also NaN
            raise ConfigError(
                f"bench: {name} must be a finite number from {least}, got {given[name]}."
            )
    check_known("bench", "suite", suite, (*SUITES, HOST))
    check_known("bench", "scale", scale, ("quick", "full", "cut"))
    if scale == "cut" and suite != "models":
        raise ConfigError(f"bench: suite must be 'models' for scale 'cut', got {suite!r}.")
    if given["device"] is not None:
        check_known("bench", "device", given["device"], DEVICES)
    check_known("bench", "attention", given["attention"], ATTENTIONS)
    for name in given["dtypes"]:
        check_known("bench", "dtype", name, ("float32", "bfloat16", "float16"))
    for name in given["only"]:
        check_known("bench", "contender", name, contender_names(suite))


def require_cuda() -> None:
    """Refuse device ``cuda`` where there is none."""
    import torch

    if not torch.cuda.is_available():
        raise ConfigError("bench: device 'cuda' needs a CUDA device, got none on this machine.")


def result_path(out: Path | None, device: str) -> Path:
    """``out`` if it ends with ``.json``, else ``DEVICE.json`` in ``out`` or ``runs/bench``."""
    if out is None:
        return Path("runs") / "bench" / f"{device}.json"
    return out if out.suffix == ".json" and not out.is_dir() else out / f"{device}.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchConfig:
    """One call of ``diffattn bench``. Written into the record."""

    suite: str
    scale: str = "full"
    """``"quick"`` (a minute on a CPU), ``"full"``, or ``"cut"``: models of two small depths, whose
    difference gives the time per layer, and so the time of the whole model."""
    device: str = "cpu"
    dtypes: tuple[str, ...] = ()
    """Default: the dtypes of the scale."""
    lengths: tuple[int, ...] = ()
    """Tokens; for decode, paged and generation cached tokens. Default: those of the scale."""
    only: tuple[str, ...] = ()
    """Contenders to time besides PyTorch's softmax attention. Default: all."""
    attention: str = "v1"
    """Shapes of the operator: ``"v1"`` (keys for each map, wide values) or ``"v2"``."""
    rounds: int = 3
    seconds: float = 10.0
    """After this time and ``rounds``, or after 50 rounds, a case starts no new round."""

    def __post_init__(self) -> None:
        check_names(asdict(self))
        for length in self.lengths:
            if length < 1:
                raise ConfigError(f"bench: length must be 1 or more, got {length}.")
        if self.device == "cuda":
            require_cuda()
        if self.device == "cpu" and "float16" in self.dtypes:
            raise ConfigError(
                "bench: dtype must be float32 or bfloat16 on a CPU, got 'float16', for which "
                "PyTorch has no fast matrix product there."
            )

    def settings(self) -> dict[str, Any]:
        """The settings that must be equal in an older result that is used again."""
        return {"only": sorted(self.only), "rounds": self.rounds, "seconds": self.seconds}


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One timed shape, as plain values that can be sent to another process."""

    suite: str
    device: str
    dtype: str
    mode: str
    """``"forward"``, ``"backward"``, ``"forward_backward"``, ``"prefill"`` or ``"decode"``."""
    shape: Mapping[str, Any] = field(default_factory=dict)

    @property
    def torch_dtype(self) -> "torch.dtype":
        """The dtype."""
        import torch

        return getattr(torch, self.dtype)

    def __str__(self) -> str:
        return f"{shape_text(self.shape)} {self.dtype} {self.mode.replace('_', ' + ')}"
