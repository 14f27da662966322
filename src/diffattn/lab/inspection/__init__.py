"""Models looked into: a text is read, and its attention maps become a page."""
