"""The matched baseline: ordinary multi-head attention with the same interface."""

from diffattn.layers.attention import AttentionLayer
from diffattn.ops.softmax_attention import softmax_attention


class SoftmaxAttention(AttentionLayer):
    r"""Multi-head softmax attention.

    .. math:: Y = \mathrm{Concat}(\mathrm{softmax}(s Q_i K_i^\top) V_i)\,W^O

    Arguments are those of :class:`~diffattn.layers.attention.AttentionLayer`. With ``head_norm``
    the layer is the "+ GroupNorm" ablation of the DIFF Transformer paper.

    Source: arXiv:1706.03762, section 3.2.2.
    """

    operator = staticmethod(softmax_attention)
