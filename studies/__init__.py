"""Studies: what exports, verifies and trains, what a harmed file shows, measured over many models and written as pages."""
