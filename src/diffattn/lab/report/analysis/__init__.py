"""The page of `diffattn analyze`: attention, outliers and λ of models on one text."""
