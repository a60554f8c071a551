"""How people repair functions: small changes found in the histories of git repositories."""
