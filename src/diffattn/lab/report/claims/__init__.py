"""The claims of the papers, each with what the committed records say about it."""
