//! Errors travel with `?`: those of the client through the code of a service, and any error through
//! a handler.

use std::error::Error as StdError;

use idem_client::{
    DecodeError, Effect, Error, Handled, HandlerError, HandlerFailed, Message, NotReady,
    PublishError, SourceEnded, TerminalError, UnavailableError,
    http::BodyError,
    journal::{CallError, CallFailed},
};

fn is_an_error<E: StdError + Send + Sync + 'static>() {}
fn is_sent<E: Send + Sync + 'static>() {}

/// Goal: every public error type can be boxed, sent to another thread and kept. `HandlerError` and
/// `CallError` take every error instead, and become one.
#[test]
fn every_error_type_is_an_error() {
    is_an_error::<Error>();
    is_an_error::<NotReady>();
    is_an_error::<DecodeError>();
    is_an_error::<HandlerFailed>();
    is_an_error::<PublishError>();
    is_an_error::<SourceEnded>();
    is_an_error::<TerminalError>();
    is_an_error::<UnavailableError>();
    is_an_error::<BodyError>();
    is_an_error::<CallFailed>();
    is_sent::<HandlerError>();
    is_sent::<CallError>();
}

/// Goal: `?` of a service that uses `anyhow`, or boxed errors.
#[test]
fn errors_of_the_client_pass_through_other_code() {
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

/// A failing step, one for each type of error that a handler meets.
fn handler(step: &str) -> Handled {
    let boxed: Result<(), Box<dyn StdError + Send + Sync>> = Err("boxed".into());
    match step {
        "driver" => "port=none".parse::<tokio_postgres::Config>().map(drop)?,
        "json" => serde_json::from_str::<u64>("no").map(drop)?,
        "idem" => Effect::json("", &1).map(drop)?,
        "anyhow" => Err(anyhow::anyhow!("a bad day"))?,
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
fn handler_takes_every_error_with_a_question_mark() {
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

/// Goal: what an error says about the message outlives helpers that use `anyhow`.
#[test]
fn class_of_an_error_outlives_anyhow() {
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
    let failed = HandlerError::from(helper("a bad day".into()).unwrap_err());
    assert!(!failed.is_terminal() && !failed.is_unavailable());
}

/// Goal: a line of the log repeats no cause.
#[test]
fn text_of_a_marked_error_is_there_once() {
    let error = HandlerError::terminal("no such order");
    assert_eq!(error.to_string(), "no such order");
    let boxed = HandlerError::from(error.into_error());
    assert_eq!(boxed.to_string(), "no such order");
}

/// An error that quotes its cause, as many do.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the order: {0}")]
struct Quoting(#[source] serde_json::Error);

/// Goal: logs and dead letters show no payload. The text of a parser's error shows a value of it.
#[test]
fn text_of_a_failure_shows_no_value_of_a_payload() {
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

/// Goal: the class of an error without a cause outlives helpers that use `anyhow`, too.
#[test]
fn class_of_a_failed_call_outlives_anyhow() {
    let step = || "charge".to_owned();
    let refused = || CallFailed::Refused {
        step: step(),
        error: "the card is blocked".into(),
    };
    // What it failed for is a dependency that is down, and the call may have taken effect.
    let unheard = || CallFailed::Unheard {
        step: step(),
        error: UnavailableError::new("503").into(),
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
