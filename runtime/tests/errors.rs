//! Errors can be propagated with `?`: errors of the client through the code of a service, and any
//! error through a handler.

use std::error::Error as StdError;

use idem_client::{Effect, preflight::NotReady};
use idem_runtime::{
    Error, Handled, HandlerError, Message, PublishError,
    consumer::SourceEnded,
    handler::{DecodeError, HandlerFailed},
    journal::{CallError, CallFailed},
};

fn assert_error<E: StdError + Send + Sync + 'static>() {}
fn assert_send<E: Send + Sync + 'static>() {}

/// Every public error type of the client and the runtime can be boxed, sent to another thread and
/// stored. `HandlerError` and `CallError` do not implement `Error`: they accept every error, and
/// convert into an error type.
#[test]
fn public_error_types_implement_error() {
    assert_error::<Error>();
    assert_error::<NotReady>();
    assert_error::<DecodeError>();
    assert_error::<HandlerFailed>();
    assert_error::<PublishError>();
    assert_error::<SourceEnded>();
    assert_error::<idem_client::Error>();
    assert_error::<CallFailed>();
    assert_send::<HandlerError>();
    assert_send::<CallError>();
}

/// A service can use `?` with `anyhow` or boxed errors.
#[test]
fn client_errors_convert_into_anyhow_and_boxed_errors() {
    fn by_anyhow() -> anyhow::Result<()> {
        Err(Error::LeaseLost)?;
        Ok(())
    }
    fn boxed() -> Result<(), Box<dyn StdError + Send + Sync>> {
        Err(PublishError::Rejected("no".into()))?;
        Ok(())
    }
    fn of_a_handler() -> anyhow::Result<()> {
        Err(HandlerError::terminal("no such order").into_error())?;
        Ok(())
    }
    assert_eq!(
        by_anyhow().unwrap_err().to_string(),
        Error::LeaseLost.to_string()
    );
    assert!(boxed().unwrap_err().is::<PublishError>());
    assert!(of_a_handler().unwrap_err().is::<HandlerFailed>());
}

/// Fails with a different type of error for each step.
fn handler(step: &str) -> Handled {
    let boxed: Result<(), Box<dyn StdError + Send + Sync>> = Err("boxed".into());
    match step {
        "driver" => "port=none".parse::<tokio_postgres::Config>().map(drop)?,
        "json" => serde_json::from_str::<u64>("no").map(drop)?,
        "idem" => Effect::json("", &1).map(drop)?,
        "anyhow" => Err(anyhow::anyhow!("not this time"))?,
        "boxed" => boxed?,
        "io" => Err(std::io::Error::other("disk"))?,
        "text" => Err("text")?,
        "formatted" => Err(format!("text {step}"))?,
        "handler" => handler("anyhow").map(drop)?,
        other => panic!("no such step: {other}"),
    }
    Ok(Vec::new())
}

#[test]
fn handler_error_converts_from_every_error() {
    for step in [
        "driver",
        "json",
        "anyhow",
        "boxed",
        "io",
        "text",
        "formatted",
        "handler",
    ] {
        let error = handler(step).unwrap_err();
        assert!(
            !error.is_terminal() && !error.is_unavailable(),
            "{step}: {error}"
        );
        assert!(!error.to_string().is_empty(), "{step}");
    }
}

/// A helper that uses `anyhow` does not change the class of an error.
#[test]
fn error_class_is_kept_through_anyhow() {
    use anyhow::Context;

    let helper = |error: HandlerError| -> anyhow::Result<()> { Err(error.into_error())? };
    let with_context = |error: HandlerError| helper(error).context("while charging");
    let unreadable = || -> anyhow::Result<()> {
        Message::new("orders", "no JSON").json::<u64>()?;
        Ok(())
    };
    for (name, failed) in [
        ("terminal", helper(HandlerError::terminal("no such order"))),
        (
            "terminal with context",
            with_context(HandlerError::terminal("no such order")),
        ),
        ("unreadable", unreadable()),
        (
            "unreadable with context",
            unreadable().context("while reading"),
        ),
    ] {
        let error = HandlerError::from(failed.unwrap_err());
        assert!(error.is_terminal(), "{name}: {error}");
    }
    for (name, failed) in [
        ("unavailable", helper(HandlerError::unavailable("503"))),
        (
            "unavailable with context",
            with_context(HandlerError::unavailable("503")),
        ),
    ] {
        let error = HandlerError::from(failed.unwrap_err());
        assert!(error.is_unavailable(), "{name}: {error}");
    }
    let failed = HandlerError::from(helper("not this time".into()).unwrap_err());
    assert!(!failed.is_terminal() && !failed.is_unavailable());
}

/// The cause of an error does not repeat the text of the error, so a log line contains the text
/// once.
#[test]
fn text_of_a_classified_error_is_not_repeated() {
    let error = HandlerError::terminal("no such order");
    assert_eq!(error.to_string(), "no such order");
    let boxed = HandlerError::from(error.into_error());
    assert_eq!(boxed.to_string(), "no such order");
}

/// An error that quotes the text of its cause in its own text.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the order: {0}")]
struct Quoting(#[source] serde_json::Error);

/// Logs and dead letters do not contain payloads. So the text of a parser error, which would
/// contain a value of the payload, is left out.
#[test]
fn failure_text_does_not_contain_payload_values() {
    use anyhow::{Context, anyhow};

    type Boxed = Box<dyn StdError + Send + Sync>;
    let parsed = || serde_json::from_str::<u64>("\"4111, expected\"").unwrap_err();
    let of_a_value = || serde_json::from_value::<u64>(serde_json::json!("4111")).unwrap_err();
    for (name, error) in [
        ("bare", HandlerError::from(parsed())),
        ("of a value", of_a_value().into()),
        ("anyhow", anyhow::Error::from(parsed()).into()),
        (
            "anyhow with context",
            Err::<(), _>(parsed())
                .context("while reading")
                .unwrap_err()
                .into(),
        ),
        (
            "text in anyhow",
            anyhow!("cannot read the order: {}", parsed()).into(),
        ),
        (
            "debug text in anyhow",
            anyhow!("cannot read the order: {:?}", parsed()).into(),
        ),
        (
            "boxed anyhow",
            Boxed::from(anyhow::Error::from(parsed())).into(),
        ),
        ("io", std::io::Error::from(parsed()).into()),
        ("quoting", Quoting(parsed()).into()),
        (
            "quoting in anyhow",
            anyhow::Error::from(Quoting(parsed())).into(),
        ),
        (
            "terminal",
            HandlerError::terminal(anyhow::Error::from(parsed())),
        ),
        ("a text", parsed().to_string().into()),
    ] {
        let text = Error::Handler(error).to_string();
        assert!(!text.contains("4111"), "{name}: {text}");
        assert!(
            text.contains("invalid type, expected u64"),
            "{name}: {text}"
        );
        assert_eq!(text.matches("invalid type").count(), 1, "{name}: {text}");
    }
}

/// A helper that uses `anyhow` does not change the class of an error that has no cause.
#[test]
fn failed_call_class_is_kept_through_anyhow() {
    let step = || "charge".to_owned();
    let refused = || CallFailed::Refused {
        step: step(),
        error: "the card is blocked".into(),
    };
    // The cause is an unavailable service. The handler error must still not count as unavailable,
    // because the call may have taken effect.
    let unheard = || CallFailed::Uncertain {
        step: step(),
        error: HandlerError::unavailable("503").into_error().into(),
    };
    for (name, error, is_terminal) in [
        ("refused", HandlerError::from(refused()), true),
        (
            "refused in anyhow",
            anyhow::Error::from(refused()).into(),
            true,
        ),
        ("unheard", unheard().into(), false),
        (
            "unheard in anyhow",
            anyhow::Error::from(unheard()).into(),
            false,
        ),
    ] {
        assert_eq!(error.is_terminal(), is_terminal, "{name}: {error}");
        assert!(!error.is_unavailable(), "{name}: {error}");
    }
}
