"""Names of the contenders: the implementations that are timed together. Needs no torch."""

from diffattn.ops.inputs import backends

T, TC, DIFF = "T", "TC", "DIFF"
"""Roles. T: PyTorch's softmax attention. TC: softmax attention by a technique of ours. DIFF:
differential attention."""
SDPA = "sdpa"
FLASH_4, FLASH_4_ONE, TWO_CUDNN = "flash_attn_4", "flash_attn_4_one_call", "two_calls_cudnn"
"""GPU only: T by FlashAttention 4 (package flash-attn-4), V2 by one call of it, maps by cuDNN."""
DIFFATTN, TRANSFORMERS = "diffattn", "transformers"
MODEL_CONTENDERS = {
    # name: role, technique, attention type, package of the model, attention implementation
    "softmax_sdpa": (T, "sdpa", "softmax", DIFFATTN, "sdpa"),
    "softmax": (TC, DIFFATTN, "softmax", DIFFATTN, "diffattn"),
    "diff": (DIFF, DIFFATTN, "diff", DIFFATTN, "diffattn"),
    "diff_v2": (DIFF, DIFFATTN, "diff_v2", DIFFATTN, "diffattn"),
    "shared_diff": (DIFF, DIFFATTN, "shared_diff", DIFFATTN, "diffattn"),
    "llama": (TC, TRANSFORMERS, "softmax", TRANSFORMERS, "sdpa"),
    "diffllama": (DIFF, TRANSFORMERS, "diff", TRANSFORMERS, "sdpa"),
}
FOLDED = "shared_diff_folded"
GENERATION_CONTENDERS = MODEL_CONTENDERS | {
    FOLDED: (DIFF, DIFFATTN, "shared_diff", DIFFATTN, "diffattn")
}
"""Folding changes how a model trains, but not its logits, so it is timed in generation only."""


PAGED_SOFTMAX = "softmax_triton"
"""TC of the suite ``paged``: softmax attention on pages, by the technique of ``triton``."""
DENSE = {"dense_decode": "decode", "dense_triton_decode": "triton_decode"}
"""Contenders of ``paged`` whose keys and values are not in pages, and their backends."""


def contender_names(suite: str) -> tuple[str, ...]:
    """Names that ``only`` may hold in a suite: models, or backends of the operators."""
    if suite == "models":
        return tuple(MODEL_CONTENDERS)
    if suite == "generation":
        return tuple(GENERATION_CONTENDERS)
    if suite == "paged":
        return (SDPA, PAGED_SOFTMAX, *backends.names("paged_decode"), *DENSE)
    known = [*backends.names("diff_attention"), *backends.names("softmax_attention"), SDPA]
    known += [FLASH_4_ONE, TWO_CUDNN] if suite == "ops" else []
    return tuple(dict.fromkeys(known))
