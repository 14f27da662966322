"""Files for folders that load without ``diffattn``: the model's code in one file, and a card."""
