"""What was measured, one file or folder a table; ``python -m benchmarks`` lists them. Not part of what is installed."""
