"""Names of the contenders; loads without torch."""

from diffattn.ops.inputs import backends

T, TC, DIFF = "T", "TC", "DIFF"
"""Roles: PyTorch's softmax attention, softmax attention by our technique, and differential."""
SDPA = "sdpa"
FLASH_4, FLASH_4_ONE, TWO_CUDNN = "flash_attn_4", "flash_attn_4_one_call", "two_calls_cudnn"
"""On a GPU: FlashAttention 4 (package flash-attn-4) as T, V2 by one call of it, and both maps by
cuDNN."""
DIFFATTN, TRANSFORMERS = "diffattn", "transformers"
MODEL_CONTENDERS = {
    # name: role, technique, attention type, whose model, attention implementation
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
"""In training a folded model would be another one; in generation it is the same."""


PAGED_SOFTMAX = "softmax_triton"
"""Beside paged decoding: softmax attention by the technique of ``triton``."""
DENSE = {"dense_decode": "decode", "dense_triton_decode": "triton_decode"}
"""Beside paged decoding: the same keys and values without pages, by a backend of the operator."""


def contender_names(suite: str) -> tuple[str, ...]:
    """Names that ``only`` takes in a suite: models, or backends of either operator."""
    if suite == "models":
        return tuple(MODEL_CONTENDERS)
    if suite == "generation":
        return tuple(GENERATION_CONTENDERS)
    if suite == "paged":
        return (SDPA, PAGED_SOFTMAX, *backends.names("paged_decode"), *DENSE)
    known = [*backends.names("diff_attention"), *backends.names("softmax_attention"), SDPA]
    known += [FLASH_4_ONE, TWO_CUDNN] if suite == "ops" else []
    return tuple(dict.fromkeys(known))
