"""Tools that every benchmark uses: timing, dispatch observation, spreads, tables, plots."""
