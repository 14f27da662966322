"""How transformers finds the classes in the file beside the weights."""

FILE_NAME = "modeling_diff_transformer.py"
CLASSES = {
    "AutoConfig": "DiffTransformerConfig",
    "AutoModel": "DiffTransformerModel",
    "AutoModelForCausalLM": "DiffTransformerForCausalLM",
    "AutoModelForSequenceClassification": "DiffTransformerForSequenceClassification",
}
"""Hugging Face's class to ours."""
AUTO_MAP = {auto: f"{FILE_NAME.removesuffix('.py')}.{name}" for auto, name in CLASSES.items()}
"""Of ``config.json``: Hugging Face's class to file and class of ours."""
