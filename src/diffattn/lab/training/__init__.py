"""Training on transformers.Trainer: configuration, data order, schedule, records."""
