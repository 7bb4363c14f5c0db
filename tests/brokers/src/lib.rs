//! Throwaway brokers and proxies for tests, on free loopback ports, with their data under `target/`.
