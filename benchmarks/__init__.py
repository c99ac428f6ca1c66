"""Measuring jaxgemm against what users have today."""
