//! Tests of TLS and logins for every connection, on real servers. The test creates the authority of
//! their certificates.

mod kafka;
mod nats;
mod postgres;
mod proxy;
mod rabbitmq;
mod secrets;

use std::error::Error;

use idem_runtime::{OutgoingMessage, PublishError};
use uuid::Uuid;

/// The error texts of rustls for a certificate of an unknown authority, for a certificate of
/// another host, and for an expired certificate.
const UNKNOWN: &str = "UnknownIssuer";
const OTHER_HOST: &str = "not valid for name";
const EXPIRED: &str = "expired";

fn effect(topic: &str) -> OutgoingMessage {
    OutgoingMessage::new(Uuid::new_v4(), topic, "1")
}

/// Returns the text of an error together with the texts of all its causes.
fn chain(error: &dyn Error) -> String {
    let mut text = format!("{error} {error:?}");
    let mut source = error.source();
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}

/// Asserts that publishing failed with `Unavailable`, and that the error contains this reason.
fn assert_unavailable(published: Result<(), PublishError>, reason: &str) {
    match published {
        Err(PublishError::Unavailable(error)) => {
            let text = chain(&*error);
            assert!(text.contains(reason), "{reason}: {text}");
        }
        other => panic!("{reason}: {other:?}"),
    }
}
