"""Frames, messages, authentication, server and client."""
