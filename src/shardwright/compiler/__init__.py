"""What the compiler does, as data: a record for each behaviour of XLA that is known, with its evidence."""
