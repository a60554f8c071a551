"""The settings: their declaration, their source (file and environment), and their reload."""
