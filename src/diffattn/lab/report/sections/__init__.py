"""One module per kind of study: its records become the elements of a page."""
