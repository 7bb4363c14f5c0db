//! Tests of the integrations on real brokers. This crate has no code besides its tests.
