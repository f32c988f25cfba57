"""What integrates along lines and over planes: quadrature, pieces in closed form, Gaussians."""
