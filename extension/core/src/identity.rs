//! Maps the sender's message id to the 16-byte key that is claimed: the UUID itself, or the first
//! half of the SHA-256 of the text, which SQL and every programming language can compute. The text
//! is stored beside the key. If a row has the same key and another text, a claim fails (23000): it
//! is never a silent duplicate.

use crate::error::{Invalid, check_len};
use crate::limits::{ID_BYTES, NAME_BYTES};
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// The 16 bytes that identify a message: its uuid, or the first half of the SHA-256 of its text id.
///
/// SHA-256 is used because SQL can compute it: `substring(sha256(id::bytea) FROM 1 FOR 16)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key([u8; 16]);

impl Key {
    pub fn bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// A validated message id: its key and, unless it is a uuid, its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageId<'a> {
    pub key: Key,
    pub text: Option<&'a str>,
}

impl MessageId<'static> {
    pub fn from_uuid(bytes: [u8; 16]) -> Self {
        MessageId {
            key: Key(bytes),
            text: None,
        }
    }
}

impl<'a> MessageId<'a> {
    /// Accepts a text of 1 to [`ID_BYTES`] bytes. A text in the format of a uuid (8-4-4-4-12
    /// hexadecimal digits, upper or lower case) is treated as that uuid.
    pub fn from_text(text: &'a str) -> Result<Self, Invalid> {
        check_len("the message id", text, ID_BYTES)?;
        // `try_parse` accepts several formats. Only the format with hyphens has 36 bytes.
        if text.len() == 36
            && let Ok(uuid) = Uuid::try_parse(text)
        {
            return Ok(MessageId {
                key: Key(*uuid.as_bytes()),
                text: None,
            });
        }
        Ok(MessageId {
            key: Key(first_half(Sha256::digest(text))),
            text: Some(text),
        })
    }
}

/// Checks that a destination has 1 to [`NAME_BYTES`] bytes.
pub fn check_destination(name: &str) -> Result<(), Invalid> {
    check_len("the destination", name, NAME_BYTES)
}

/// The id of an installation. Two installations derive different ids for the same message, because
/// a broker or a payment gateway can serve both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Salt(pub [u8; 16]);

/// Returns the message id of an effect for which the caller gave no id. It is a UUIDv8 that depends
/// only on the arguments.
pub fn effect_message_id(salt: Salt, destination: &str, key: &Key, ordinal: i32) -> Uuid {
    let digest = Sha256::new()
        .chain_update(b"idem effect\0")
        .chain_update(salt.0)
        .chain_update(destination)
        .chain_update([0])
        .chain_update(key.bytes())
        .chain_update(ordinal.to_be_bytes())
        .finalize();
    uuid::Builder::from_custom_bytes(first_half(digest)).into_uuid()
}

/// Returns the idempotency key of an external call. It is a UUIDv8 that depends only on the
/// arguments, so all attempts at a step of a message have the same key. `identity` is the
/// destination, or a text that represents all destinations.
pub fn call_key(salt: Salt, identity: &str, key: &Key, step: &str) -> Uuid {
    let digest = Sha256::new()
        .chain_update(b"idem call\0")
        .chain_update(salt.0)
        .chain_update(identity)
        .chain_update([0])
        .chain_update(key.bytes())
        .chain_update(step)
        .finalize();
    uuid::Builder::from_custom_bytes(first_half(digest)).into_uuid()
}

/// Returns the SHA-256 of a request. Two requests are equal if their digests are equal.
pub fn request_digest(request: &str) -> [u8; 32] {
    Sha256::digest(request).into()
}

/// Returns the hash that selects the partition of an effect. The hash is never negative. It must
/// not change between servers or versions, so that all effects of a key stay in one partition and
/// keep their order.
pub fn partition_hash(key: Option<&str>, message_id: &Uuid) -> i32 {
    let digest = match key {
        Some(key) => Sha256::digest(key),
        None => Sha256::digest(message_id.as_bytes()),
    };
    i32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]) & i32::MAX
}

fn first_half(digest: impl AsRef<[u8]>) -> [u8; 16] {
    let mut half = [0; 16];
    half.copy_from_slice(&digest.as_ref()[..16]);
    half
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn text_that_spells_a_uuid_is_that_uuid() {
        let uuid = Uuid::from_u128(0x0192_f3a4_0000_7abc_8def_0123_4567_89ab);
        let lower = uuid.to_string();
        let upper = lower.to_uppercase();
        for text in [lower.as_str(), upper.as_str()] {
            assert_eq!(
                MessageId::from_text(text),
                Ok(MessageId::from_uuid(*uuid.as_bytes())),
                "{text}"
            );
        }
        let simple = uuid.simple().to_string();
        assert_eq!(
            MessageId::from_text(&simple).map(|id| id.text),
            Ok(Some(simple.as_str()))
        );
    }

    #[test]
    fn key_is_first_half_of_sha_256_of_text() {
        let id = MessageId::from_text("abc").unwrap();
        assert_eq!(
            id.key.bytes(),
            &Uuid::from_u128(0xba7816bf_8f01cfea_414140de_5dae2223).into_bytes()
        );
        assert_eq!(id.text, Some("abc"));
    }

    #[test]
    fn empty_and_long_ids_are_rejected() {
        assert!(MessageId::from_text("").is_err());
        assert!(MessageId::from_text(&"x".repeat(1024)).is_ok());
        assert!(MessageId::from_text(&"x".repeat(1025)).is_err());
    }

    const SALT: Salt = Salt([1; 16]);
    const OTHER_SALT: Salt = Salt([2; 16]);

    #[test]
    fn effect_id_depends_on_message_ordinal_and_salt() {
        let key = MessageId::from_text("order-1").unwrap().key;
        let id = effect_message_id(SALT, "orders", &key, 0);
        assert_eq!(id, effect_message_id(SALT, "orders", &key, 0));
        assert_ne!(id, effect_message_id(SALT, "orders", &key, 1));
        assert_ne!(id, effect_message_id(SALT, "order", &key, 0));
        assert_ne!(id, effect_message_id(OTHER_SALT, "orders", &key, 0));
        assert_eq!(id.get_version_num(), 8);
    }

    #[test]
    fn call_key_depends_on_message_step_and_salt() {
        let [one, two] = ["order-1", "order-2"].map(|id| MessageId::from_text(id).unwrap().key);
        let key = call_key(SALT, "orders", &one, "charge");
        assert_eq!(key, call_key(SALT, "orders", &one, "charge"));
        assert_ne!(key, call_key(SALT, "orders", &one, "mail"));
        assert_ne!(key, call_key(SALT, "orders", &two, "charge"));
        assert_ne!(key, call_key(SALT, "order", &one, "charge"));
        assert_ne!(key, call_key(OTHER_SALT, "orders", &one, "charge"));
        assert_eq!(key.get_version_num(), 8);
    }

    /// External systems remember idempotency keys for days. If an upgrade changed the keys, a
    /// retried request would charge a second time.
    #[test]
    fn call_key_derivation_is_stable() {
        let key = MessageId::from_text("order-1").unwrap().key;
        assert_eq!(
            call_key(SALT, "orders", &key, "charge").to_string(),
            "887efc74-545d-8954-9663-ebee23cbec95"
        );
    }

    #[test]
    fn call_key_differs_from_effect_id() {
        let key = MessageId::from_text("order-1").unwrap().key;
        assert_ne!(
            call_key(SALT, "orders", &key, "\0\0\0\0"),
            effect_message_id(SALT, "orders", &key, 0)
        );
    }

    proptest! {
        #[test]
        fn different_requests_have_different_digests(a in ".{0,80}", b in ".{0,80}") {
            prop_assert_eq!(a == b, request_digest(&a) == request_digest(&b));
        }

        #[test]
        fn different_texts_have_different_identities(a in ".{1,80}", b in ".{1,80}") {
            let (x, y) = (MessageId::from_text(&a).unwrap(), MessageId::from_text(&b).unwrap());
            prop_assert_eq!(a == b, x == y);
            if x.text.is_some() && y.text.is_some() {
                prop_assert_eq!(a == b, x.key == y.key);
            }
        }

        #[test]
        fn partition_hash_is_never_negative(key in proptest::option::of(".{0,40}"), id: u128) {
            prop_assert!(partition_hash(key.as_deref(), &Uuid::from_u128(id)) >= 0);
        }
    }
}
