"""Libraries on top of JAX that call jaxgemm. Needs the extra `ecosystem`."""
