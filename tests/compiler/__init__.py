"""Proof that generated code computes what the operators say."""
