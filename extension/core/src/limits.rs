//! A limit on everything, in bytes or counts.

/// Bytes of a message id.
pub const ID_BYTES: usize = 1024;
/// Bytes of a destination, a step, a topic, a type, a content type or the name of a relay.
pub const NAME_BYTES: usize = 255;
/// Bytes of the key of an effect.
pub const KEY_BYTES: usize = 1024;
/// Bytes of a fingerprint: a SHA-512 fits.
pub const FINGERPRINT_BYTES: usize = 64;
/// Ids in one batch.
pub const BATCH_IDS: usize = 100_000;
/// Effects in one call.
pub const EFFECTS: usize = 10_000;
/// Bytes of the effects of one call, as JSON.
pub const EFFECTS_BYTES: usize = 64 * 1024 * 1024;
/// Bytes of the headers of a message, as JSON.
pub const HEADERS_BYTES: usize = 1024 * 1024;
/// Bytes of a W3C traceparent (version 00 has 55).
pub const TRACEPARENT_BYTES: usize = 255;
/// Attempts that a message has unless idem_configure_retries says otherwise.
pub const MAX_ATTEMPTS: i32 = 10;
/// Errors that are kept of one message, the newest.
pub const FAILURES: usize = 100;
/// Bytes of the error of an external call.
pub const ERROR_BYTES: usize = 8192;
/// Bytes of an error that are kept with a pending message.
pub const FAILURE_BYTES: usize = 2000;
