//! Limits, in bytes or counts.

/// Maximum bytes of a message id.
pub const ID_BYTES: usize = 1024;
/// Maximum bytes of a destination, a step, a topic, a type, a content type or the name of a relay.
pub const NAME_BYTES: usize = 255;
/// Maximum bytes of the key of an effect.
pub const KEY_BYTES: usize = 1024;
/// Maximum bytes of a fingerprint. A SHA-512 fits.
pub const FINGERPRINT_BYTES: usize = 64;
/// Maximum number of ids in one batch.
pub const BATCH_IDS: usize = 100_000;
/// Maximum number of effects in one function call.
pub const EFFECTS: usize = 10_000;
/// Maximum bytes of the effects in one function call, as JSON.
pub const EFFECTS_BYTES: usize = 64 * 1024 * 1024;
/// The largest value of idem.max_payload, in bytes. The server can return such a payload as text:
/// its text form has twice as many bytes and, with the headers, fits into a row of 1 GB.
pub const LARGEST_PAYLOAD_BYTES: usize = 256 * 1024 * 1024;
/// Maximum bytes of the headers of a message, as JSON.
pub const HEADERS_BYTES: usize = 1024 * 1024;
/// Maximum bytes of a W3C traceparent (version 00 has 55).
pub const TRACEPARENT_BYTES: usize = 255;
/// The default number of attempts of a message; idem_configure_retries changes it.
pub const MAX_ATTEMPTS: i32 = 10;
/// Maximum number of errors that are stored with a message. When there are more, the oldest are
/// dropped.
pub const FAILURES: usize = 100;
/// Maximum bytes of an error that is stored. A longer error is truncated.
pub const ERROR_BYTES: usize = 2000;
