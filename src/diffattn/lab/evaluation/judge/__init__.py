"""A judge model decides whether recorded outputs are supported by their documents."""
