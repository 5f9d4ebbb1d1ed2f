"""The constants of a device by calibration: designed programs, compiled, and what kernels and links take in them."""
