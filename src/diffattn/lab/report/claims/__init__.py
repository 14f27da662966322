"""The claims of the papers, each with the effect in the committed records."""
