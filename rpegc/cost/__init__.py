"""The performance model: one file a family of terms."""
