"""Parts that all operators share: checks, masks, the table of backends, rotary positions, λ, head
norm."""
