"""Our losses inside other frameworks."""
