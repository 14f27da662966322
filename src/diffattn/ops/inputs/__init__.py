"""Parts that all operators share: checks, masks, the table of backends, formulas of a layer."""
