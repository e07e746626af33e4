"""The intermediate representation: the RLM Pipeline Execution Graph."""
