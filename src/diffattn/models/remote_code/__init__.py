"""What a saved folder needs where ``diffattn`` is missing: its code in one file, and a card."""
