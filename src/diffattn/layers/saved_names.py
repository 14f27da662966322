"""Parameters have the names of the original V1 code in files, records and messages.

In memory two of them say more: trainers that recognise what not to decay by name (transformers'
among them) look for ``norm`` and ``bias``, so the norm of a head is ``head_norm`` and λ's vectors,
the part of λ that no token changes, lie in ``lambda_bias``.

=============================== ==================
in memory                       in files
=============================== ==================
``head_norm.weight``            ``subln.weight``
``lambda_bias.lambda_q1``, ...  ``lambda_q1``, ...
=============================== ==================
"""

import re

_VECTORS = "lambda_[qk][12]"


def saved_name(name: str) -> str:
    """The name in a file of a parameter of an attention layer, alone or in a model.

    Args:
        name: As in ``named_parameters``; the name of any other parameter is returned as it is.
    """
    name = re.sub(r"(^|\bself_attn\.)head_norm\.weight$", r"\1subln.weight", name)
    return re.sub(rf"(^|\bself_attn\.)lambda_bias\.({_VECTORS})$", r"\1\2", name)


def present_name(name: str) -> str:
    """The name in memory of a parameter that a file calls ``name`` (in either spelling)."""
    name = re.sub(r"(^|\bself_attn\.)subln\.weight$", r"\1head_norm.weight", name)
    return re.sub(rf"(^|\bself_attn\.)({_VECTORS})$", r"\1lambda_bias.\2", name)
