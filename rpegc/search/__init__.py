"""The search: tables in, a proven plan out."""
