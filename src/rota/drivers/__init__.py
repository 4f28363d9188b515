"""One kind of provider each: submit, terminate, poll, find allocations."""
