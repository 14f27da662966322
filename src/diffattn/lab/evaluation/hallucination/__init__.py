"""Contextual hallucination: does the text that a model reads support the text that it writes?"""
