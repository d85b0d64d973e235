"""The operators in other frameworks' idiom: one file each, imported only on request."""
