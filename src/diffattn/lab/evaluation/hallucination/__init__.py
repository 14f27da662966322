"""Whether the text that a model reads supports the text that it writes."""
