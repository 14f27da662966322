"""Names of parameters: in files, records and messages they are those of the original V1 code.

In memory two names differ: ``head_norm.weight`` is ``subln.weight`` in files, and
``lambda_bias.lambda_q1`` is ``lambda_q1``. Some trainers, like transformers', exclude parameters
from weight decay if their names contain ``norm`` or ``bias``.
"""

import re

_VECTORS = "lambda_[qk][12]"


def saved_name(name: str) -> str:
    """Name in a file of a parameter of an attention layer or of a model, by its name in memory."""
    name = re.sub(r"(^|\bself_attn\.)head_norm\.weight$", r"\1subln.weight", name)
    return re.sub(rf"(^|\bself_attn\.)lambda_bias\.({_VECTORS})$", r"\1\2", name)


def present_name(name: str) -> str:
    """Name in memory of a parameter, from its name in a file or in memory."""
    name = re.sub(r"(^|\bself_attn\.)subln\.weight$", r"\1head_norm.weight", name)
    return re.sub(rf"(^|\bself_attn\.)({_VECTORS})$", r"\1lambda_bias.\2", name)
