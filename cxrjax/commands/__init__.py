"""Commands: flags in, a call of the library, an exit code out."""
