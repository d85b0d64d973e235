"""Plans and generated code as they were: a refactor shows here that it changed neither."""
