"""Our classes by the names with which transformers' tests look for them; see the two suites."""

from transformers.models.auto import modeling_auto

from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.modeling_diff_transformer import (
    DiffTransformerForCausalLM,
    DiffTransformerForSequenceClassification,
    DiffTransformerModel,
)

# By these names the tests know what a model returns.
for names, model_class in (
    (modeling_auto.MODEL_MAPPING_NAMES, DiffTransformerModel),
    (modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, DiffTransformerForCausalLM),
    (
        modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
        DiffTransformerForSequenceClassification,
    ),
):
    names[DiffTransformerConfig.model_type] = model_class.__name__


class ConfigOfProcess:
    """The configuration for a process started anew, which finds our models by importing this."""

    from_dict = DiffTransformerConfig.from_dict
