"""One way for all claims: read claim.toml, train what is missing, keep a row per run, make tables and figures."""
