"""What every operator shares: checks, masks, the table of backends, rotary positions, λ, head
norm."""
