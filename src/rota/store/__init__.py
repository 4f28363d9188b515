"""Where events and current state become durable."""
