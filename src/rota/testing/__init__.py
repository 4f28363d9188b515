"""Public exams for drivers, stores and policies."""
