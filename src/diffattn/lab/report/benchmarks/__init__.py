"""Tables and charts of benchmark records."""
